#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "pipewright/flight/record.h"
#include "runtime/world/peers.h"

namespace pipewright {

/// What a process has noticed of a failure.
struct Notice {
  /// The surest first: an error of its own is never another's doing, and a time-out always is.
  enum class Kind { Thrown, Lost, TimedOut };
  Kind kind = Kind::Thrown;
  std::string word;
};

/// Finds out, together with those of the other processes, what has failed, and ends with the same verdict
/// everywhere: who notices something asks all for what they know and do, judges, and tells them. Where
/// several ask, the lowest rank judges. A process that ends without goodbye is noticed at once.
///
/// It depends on no other process: one that is gone, stopped or cut off is what it finds.
class FailureWatch {
 public:
  /// What this process does. Both are called on the watch's own thread.
  using Describe = std::function<ProcessRecord()>;
  using Tell = std::function<void(const std::string& verdict)>;
  FailureWatch(std::unique_ptr<Peers> peers, Describe describe, Tell tell);
  /// Says goodbye. Rank 0 stays until all others have gone, because they need its store, but not for ever.
  ~FailureWatch();
  FailureWatch(const FailureWatch&) = delete;
  FailureWatch& operator=(const FailureWatch&) = delete;

  /// The verdict of all processes, within two seconds of the first notice. From any thread.
  std::string settle(const Notice& notice);

 private:
  using Deadline = std::chrono::steady_clock::time_point;

  void serve();
  void on_word(int from, const std::string& word);
  void on_gone(int process, const std::string& why);
  void on_late();
  void on_woken();
  void ask();
  /// Judges if nobody is left to hear from.
  void judge_if_complete();
  std::string judge();
  void conclude(const std::string& verdict);
  bool is_there(int process) const { return !absent_.contains(process); }
  bool may_end();
  bool over();

  const std::unique_ptr<Peers> peers_;
  const Describe describe_;
  const Tell tell_;

  // What follows is the thread's own.
  std::map<int, std::string> absent_;  ///< With the reason, as the end of a sentence.
  std::set<int> said_goodbye_;
  std::map<int, ProcessRecord> answers_;
  std::map<int, Notice> notices_;
  std::optional<int> judge_;          ///< Who asks.
  std::optional<Deadline> deadline_;  ///< Of the answers, or of the verdict.
  std::optional<Deadline> end_;       ///< Set once this process leaves.

  std::mutex mutex_;  // what follows
  std::condition_variable changed_;
  std::optional<Notice> own_;
  std::optional<std::string> verdict_;
  bool told_ = false;  ///< To this process.
  bool leaving_ = false;

  std::thread thread_;
};

}  // namespace pipewright
