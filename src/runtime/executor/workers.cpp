#include "runtime/executor/workers.h"

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>

#include <utility>

namespace pipewright {

Workers::Workers(std::size_t count, int threads_each) {
  threads_.reserve(count);
  for (std::size_t index = 0; index < count; ++index) {
    threads_.emplace_back([this, index, threads_each] { serve(index, threads_each); });
  }
}

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Workers::start(std::function<void(std::size_t)> task) {
  {
    const std::lock_guard lock(mutex_);
    task_ = [task = std::move(task), state = at::ThreadLocalState()](std::size_t index) {
      const at::ThreadLocalStateGuard guard(state);
      task(index);
    };
    running_ = threads_.size();
    ++round_;
  }
  changed_.notify_all();
}

void Workers::wait() {
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [this] { return running_ == 0; });
  task_ = nullptr;  // with whatever it holds
}

void Workers::serve(std::size_t index, int threads) {
  at::set_num_threads(threads);
  std::size_t served = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ended_ || round_ != served; });
    if (ended_) return;
    served = round_;
    lock.unlock();
    task_(index);
    lock.lock();
    if (--running_ == 0) finished_.notify_one();
  }
}

}  // namespace pipewright
