#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include "pipewright/base/ids.h"
#include "pipewright/runtime/errors.h"
#include "pipewright/schedule/action.h"
#include "runtime/transport/channel.h"

namespace pipewright {

/// The first thing that went wrong in a step. Reporting it ends all waits.
class Failure {
 public:
  /// `tell`, if given, is called with the first failure that happens in this process.
  using Tell = std::function<void(const StepError&)>;
  explicit Failure(Transport& transport, Tell tell = {}) : transport_(transport), tell_(std::move(tell)) {}

  /// From any thread; only the first counts.
  void report(Rank rank, Action action, const std::exception_ptr& cause);
  /// The same for a failure in another process.
  void report_remote(const StepError& error);
  bool raised() const { return raised_.load(std::memory_order_relaxed); }

  /// Throws the StepError, if something was reported, and forgets it.
  /// REQUIRES: no rank is running.
  void rethrow();

 private:
  /// Whether it is the first.
  bool keep(const StepError& error);

  Transport& transport_;
  Tell tell_;
  std::atomic<bool> raised_ = false;
  std::mutex mutex_;
  std::optional<StepError> first_;
};

}  // namespace pipewright
