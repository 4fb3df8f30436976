#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include "pipewright/runtime/errors.h"
#include "pipewright/schedule/action.h"
#include "runtime/world/mesh.h"

namespace pipewright {

/// The first thing that went wrong in a step. Reporting it ends all waits.
class Failure {
 public:
  using Tell = std::function<void(const StepError&)>;
  /// `end_waits` makes every wait of this process throw Stopped. `tell` is called with the
  /// first failure that happens in this process.
  Failure(int replicas, std::function<void()> end_waits, Tell tell)
      : replicas_(replicas), end_waits_(std::move(end_waits)), tell_(std::move(tell)) {}

  /// From any thread; only the first counts.
  void report(Position position, Action action, const std::exception_ptr& cause);
  /// The same for a failure in another process.
  void report_remote(const StepError& error);
  bool raised() const { return raised_.load(std::memory_order_relaxed); }

  /// Throws the StepError, if something was reported, and forgets it.
  /// REQUIRES: no rank is running.
  void rethrow();

 private:
  /// Whether it is the first.
  bool keep(const StepError& error);

  const int replicas_;
  const std::function<void()> end_waits_;
  const Tell tell_;
  std::atomic<bool> raised_ = false;
  std::mutex mutex_;
  std::optional<StepError> first_;
};

}  // namespace pipewright
