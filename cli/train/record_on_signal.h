#pragma once

#include <atomic>
#include <functional>
#include <thread>

namespace pipewright::cli {

/// Keeps SIGUSR1 from ending this process, and from every thread that is started later. Called before there
/// are any.
void hold_record_signal();

/// Calls a function whenever SIGUSR1 comes, on a thread of its own: also while all others wait.
/// REQUIRES: hold_record_signal() was called.
class RecordOnSignal {
 public:
  explicit RecordOnSignal(std::function<void()> record);
  ~RecordOnSignal();
  RecordOnSignal(const RecordOnSignal&) = delete;
  RecordOnSignal& operator=(const RecordOnSignal&) = delete;

 private:
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

}  // namespace pipewright::cli
