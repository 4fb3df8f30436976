#include "runtime/executor/failure.h"

#include <c10/util/Exception.h>

#include <string>
#include <utility>

#include "pipewright/runtime/errors.h"

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

void Failure::report(Rank rank, Action action, std::exception_ptr cause) {
  {
    const std::lock_guard lock(mutex_);
    if (!first_) first_ = First{rank, action, std::move(cause)};
  }
  raised_ = true;
  transport_.abort();
}

void Failure::rethrow() {
  const std::lock_guard lock(mutex_);
  if (!first_) return;
  const First first = *first_;
  first_.reset();
  raised_ = false;
  throw StepError(first.rank, first.action,
                  "rank " + std::to_string(first.rank) + ", " + to_text(first.action) + " (stage " +
                      std::to_string(first.action.stage) + "): " + message_of(first.cause),
                  first.cause);
}

}  // namespace pipewright
