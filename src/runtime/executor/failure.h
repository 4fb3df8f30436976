#pragma once

#include <atomic>
#include <exception>
#include <mutex>
#include <optional>

#include "pipewright/base/ids.h"
#include "pipewright/schedule/action.h"
#include "runtime/transport/channel.h"

namespace pipewright {

/// The first thing that went wrong in a step. Reporting it ends all waits.
class Failure {
 public:
  explicit Failure(Transport& transport) : transport_(transport) {}

  /// From any thread; only the first counts.
  void report(Rank rank, Action action, std::exception_ptr cause);
  bool raised() const { return raised_.load(std::memory_order_relaxed); }

  /// Throws the StepError, if something was reported, and forgets it.
  /// REQUIRES: no rank is running.
  void rethrow();

 private:
  struct First {
    Rank rank;
    Action action;
    std::exception_ptr cause;
  };

  Transport& transport_;
  std::atomic<bool> raised_ = false;
  std::mutex mutex_;
  std::optional<First> first_;
};

}  // namespace pipewright
