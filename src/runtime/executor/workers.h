#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace pipewright {

/// Threads that wait for work together, one for each index.
class Workers {
 public:
  /// `threads_each`: threads of one operator on each worker.
  Workers(std::size_t count, int threads_each);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// Calls `task(index)` on every worker, with the thread-local state of the caller
  /// (autocast, profiler). REQUIRES: no other task is running; the task does not throw.
  void start(std::function<void(std::size_t)> task);
  void wait();

 private:
  void serve(std::size_t index, int threads);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable finished_;
  std::function<void(std::size_t)> task_;
  std::size_t round_ = 0;
  std::size_t running_ = 0;
  bool ended_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace pipewright
