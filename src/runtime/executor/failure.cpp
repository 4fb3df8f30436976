#include "runtime/executor/failure.h"

#include <c10/util/Exception.h>

#include <string>

namespace pipewright {
namespace {

std::string message_of(const std::exception_ptr& cause) {
  try {
    std::rethrow_exception(cause);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

}  // namespace

void Failure::report(Position position, Action action, const std::exception_ptr& cause) {
  std::string where = replicas_ > 1 ? "replica " + std::to_string(position.replica) + ", " : "";
  where += "rank " + std::to_string(position.rank) + ", " + to_text(action) + " (stage " +
           std::to_string(action.stage) + "): ";
  const StepError error(position.replica, position.rank, action, where + message_of(cause), cause);
  if (keep(error)) tell_(error);
}

void Failure::report_remote(const StepError& error) { keep(error); }

bool Failure::keep(const StepError& error) {
  bool is_first = false;
  {
    const std::lock_guard lock(mutex_);
    is_first = !first_.has_value();
    if (is_first) first_.emplace(error);
  }
  raised_ = true;
  end_waits_();
  return is_first;
}

void Failure::rethrow() {
  const std::lock_guard lock(mutex_);
  if (!first_) return;
  const StepError first = *first_;
  first_.reset();
  raised_ = false;
  throw first;
}

}  // namespace pipewright
