#pragma once

#include <ATen/core/ivalue.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>

namespace pipewright {

/// Waits for futures that can all be ended from another thread. Kept by a shared pointer: what is
/// waited for may outlive who waits.
class EndableWaits : public std::enable_shared_from_this<EndableWaits> {
 public:
  enum class Outcome { Done, TimedOut, Ended };

  /// Whether it succeeded or failed, it is Done. `grace`: how long it may still take after the end.
  Outcome wait(const c10::intrusive_ptr<c10::ivalue::Future>& future, std::chrono::milliseconds timeout,
               std::chrono::milliseconds grace = {});

  /// Ends all waits, now and later.
  void end();
  bool ended() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
};

}  // namespace pipewright
