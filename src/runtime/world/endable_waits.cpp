#include "runtime/world/endable_waits.h"

namespace pipewright {

EndableWaits::Outcome EndableWaits::wait(const c10::intrusive_ptr<c10::ivalue::Future>& future,
                                         std::chrono::milliseconds timeout, std::chrono::milliseconds grace) {
  if (!future->completed()) {
    future->addCallback([self = shared_from_this()](c10::ivalue::Future&) {
      // The lock keeps it from completing between a waiter's look at it and its sleep.
      {
        const std::lock_guard lock(self->mutex_);
      }
      self->changed_.notify_all();
    });
  }
  std::unique_lock lock(mutex_);
  const auto done = [&] { return future->completed(); };
  changed_.wait_for(lock, timeout, [&] { return ended_ || done(); });
  if (ended_) return changed_.wait_for(lock, grace, done) ? Outcome::Done : Outcome::Ended;
  return done() ? Outcome::Done : Outcome::TimedOut;
}

void EndableWaits::end() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
}

bool EndableWaits::ended() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

}  // namespace pipewright
