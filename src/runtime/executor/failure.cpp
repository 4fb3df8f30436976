#include "runtime/executor/failure.h"

#include <c10/util/Exception.h>

#include <string>

#include "runtime/world/remote_failure.h"

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
  if (raised()) return;
  keep(settle_({position.replica, position.rank, action,
                place_text(position, action, replicas_) + message_of(cause), cause}),
       Origin::Here);
}

void Failure::report_remote(const StepError& error) { keep(error, Origin::Elsewhere); }

void Failure::keep(const StepError& error, Origin origin) {
  const auto is_same = [&](const StepError& other) {
    return other.replica == error.replica && other.rank == error.rank && other.action == error.action;
  };
  {
    const std::lock_guard lock(mutex_);
    // Where it happened here, the others may have been faster to say so; but the cause is known here.
    if (!first_ || (origin == Origin::Here && is_same(*first_))) first_.emplace(error);
  }
  raised_ = true;
  end_waits_();
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
