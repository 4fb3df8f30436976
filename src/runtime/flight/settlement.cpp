#include "runtime/flight/settlement.h"

#include "pipewright/flight/diagnose.h"
#include "runtime/world/remote_failure.h"
#include "runtime/world/world_impl.h"

namespace pipewright {
namespace {

Notice::Kind kind_of(const std::exception_ptr& cause) {
  try {
    std::rethrow_exception(cause);
  } catch (const TimeoutError&) {
    return Notice::Kind::TimedOut;
  } catch (const ConnectionError&) {
    return Notice::Kind::Lost;
  } catch (...) {
    return Notice::Kind::Thrown;
  }
}

StepError with_what(const StepError& error, const std::string& what) {
  return {error.replica, error.rank, error.action, what, error.cause};
}

}  // namespace

StepError Settlement::settle(const StepError& noticed) {
  const Notice::Kind kind = kind_of(noticed.cause);
  if (world_) {
    const Position position{noticed.replica, noticed.rank};
    StepError settled =
        remote_failure(world_->impl().settle({kind, to_word(position, noticed.action, noticed.what())}));
    const bool same = settled.replica == noticed.replica && settled.rank == noticed.rank &&
                      settled.action == noticed.action;
    if (same) settled.cause = noticed.cause;
    return recorded(settled);
  }
  if (kind == Notice::Kind::Thrown) return recorded(noticed);
  const Diagnosis diagnosis = diagnose({describe()});
  if (diagnosis.culprits.empty()) return recorded(noticed);
  return recorded(with_what(noticed, std::string(noticed.what()) + "; " + diagnosis.culprits.front().text));
}

StepError Settlement::heard(const std::string& word) { return recorded(remote_failure(word)); }

void Settlement::begin_step() {
  const std::lock_guard lock(mutex_);
  written_.clear();
}

ProcessRecord Settlement::describe() const {
  ProcessRecord record = recorder_.read();
  if (world_) record.wait = world_->impl().waits().longest();
  return record;
}

StepError Settlement::recorded(const StepError& error) {
  if (directory_.empty()) return error;
  const std::lock_guard lock(mutex_);
  if (written_.empty()) {
    ProcessRecord record = describe();
    record.because = error.what();
    written_ = write_record(record, directory_);
  }
  if (written_.empty()) return error;
  return with_what(error, std::string(error.what()) + "\nWhat led to it is in " + written_.string() +
                              ": 'pipewright explain' reads it with those of the other processes.");
}

}  // namespace pipewright
