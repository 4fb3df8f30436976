#pragma once

#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace pipewright::cli {

/// Ranks as child processes, each the leader of a process group with all that it starts. No group outlives
/// this object, and no rank this process. Takes over the signals and all children of this process.
class RankProcesses {
 public:
  /// `grace`: from the signal that asks ranks to end to the one that kills them.
  explicit RankProcesses(std::chrono::nanoseconds grace);
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;
  ~RankProcesses();

  /// Starts the next rank with the environment as it is now; returns when it runs the program. `argv` is as
  /// execvp takes it. Throws ArgumentError if the program cannot be run.
  void start(char* const* argv);

  /// Returns when nothing is left of any group: all ranks ended, or one failed or SIGHUP, SIGINT or SIGTERM
  /// came and the others were ended. SIGUSR1 is passed on. The exit code: 0, that of the first rank that
  /// failed, or 128 + the number of the signal that ended it or came.
  int wait();

  /// What to tell of the first rank that failed; empty if none did, or a signal came before.
  const std::string& failure() const { return failure_; }

 private:
  using Clock = std::chrono::steady_clock;

  struct Rank {
    pid_t pid = 0;
    bool running = true;     ///< The process itself.
    bool group_left = true;  ///< It or others of its group; if not, the number may be that of a stranger.
  };

  [[noreturn]] void become_rank(char* const* argv, pid_t launcher, int to_parent) const;
  void signal_groups(int number) const;
  /// Has all groups end, at the latest after the grace. The first call gives the exit code.
  void end(int exit_code, int number);
  void ask_to_end(int number);
  /// The next of the signals; 0 if the time comes before to ask the ranks to end, or to kill them.
  int next_signal() const;
  /// Takes note of all processes that have ended, and ends the others if that follows.
  void reap();
  void end_after_failure(std::size_t rank, int status, bool others);

  std::chrono::nanoseconds grace_;
  sigset_t signals_;
  sigset_t inherited_mask_{};
  std::vector<Rank> ranks_;
  std::optional<int> exit_code_;  ///< Set once all are to end.
  std::optional<Clock::time_point> next_at_;
  bool ask_at_end_ = false;  ///< What is to be done then.
  std::string failure_;
};

}  // namespace pipewright::cli
