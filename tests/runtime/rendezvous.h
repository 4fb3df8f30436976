#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace pipewright {

/// Where two threads meet, or notice that they do not.
class Rendezvous {
 public:
  bool arrive() {
    std::unique_lock lock(mutex_);
    ++here_;
    changed_.notify_all();
    return changed_.wait_for(lock, std::chrono::seconds(10), [this] { return here_ >= 2; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int here_ = 0;
};

}  // namespace pipewright
