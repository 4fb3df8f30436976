#pragma once

#include <exception>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/flight/record.h"
#include "runtime/flight/clock.h"

namespace pipewright {

/// What the threads of a process wait for together with other processes.
class ProcessWaits {
 public:
  /// A wait, while it lives; one that was in vain stays, because the world is over with it.
  class Scope {
   public:
    Scope(ProcessWaits& waits, std::string what, std::vector<int> among) : waits_(waits) {
      const std::lock_guard lock(waits_.mutex_);
      at_ = waits_.all_.insert(waits_.all_.end(),
                               {std::move(what), std::move(among), wall_clock(Clock::now())});
    }
    ~Scope() {
      if (in_vain_ || std::uncaught_exceptions() > exceptions_) return;
      const std::lock_guard lock(waits_.mutex_);
      waits_.all_.erase(at_);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    void was_in_vain() { in_vain_ = true; }

   private:
    ProcessWaits& waits_;
    const int exceptions_ = std::uncaught_exceptions();
    bool in_vain_ = false;
    std::list<ProcessWait>::iterator at_;
  };

  std::optional<ProcessWait> longest() const {
    const std::lock_guard lock(mutex_);
    return all_.empty() ? std::nullopt : std::optional(all_.front());
  }

 private:
  mutable std::mutex mutex_;
  std::list<ProcessWait> all_;
};

}  // namespace pipewright
