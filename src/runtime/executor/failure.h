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
  using Settle = std::function<StepError(const StepError&)>;
  /// `end_waits` makes every wait of this process throw Stopped. `settle` finds out what has failed first,
  /// given what this process has noticed; it is called while whoever reports still waits.
  Failure(int replicas, std::function<void()> end_waits, Settle settle)
      : replicas_(replicas), end_waits_(std::move(end_waits)), settle_(std::move(settle)) {}

  /// From any thread; only the first counts.
  void report(Position position, Action action, const std::exception_ptr& cause);
  /// The same for a failure in another process.
  void report_remote(const StepError& error);
  bool raised() const { return raised_.load(std::memory_order_relaxed); }

  /// Throws the StepError, if something was reported, and forgets it.
  /// REQUIRES: no rank is running.
  void rethrow();

 private:
  enum class Origin { Here, Elsewhere };
  void keep(const StepError& error, Origin origin);

  const int replicas_;
  const std::function<void()> end_waits_;
  const Settle settle_;
  std::atomic<bool> raised_ = false;
  std::mutex mutex_;
  std::optional<StepError> first_;
};

}  // namespace pipewright
