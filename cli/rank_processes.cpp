#include "rank_processes.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "pipewright/base/error.h"

namespace pipewright::cli {
namespace {

/// The exit code of what a signal ended is this plus its number, as shells have it.
constexpr int kKilled = 128;
/// The others may fail of it by themselves, and say more about it than who is told to end.
constexpr std::chrono::milliseconds kOwnEnd{500};
/// That of a process that could not become its program; nobody but us sees it.
constexpr int kNotRun = 127;

/// What wait() waits for. What our caller ignores, as nohup does, stays ignored.
sigset_t signals_to_wait_for() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  for (const int number : {SIGHUP, SIGINT, SIGTERM, SIGUSR1}) {
    struct sigaction action{};
    sigaction(number, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&signals, number);
  }
  return signals;
}

}  // namespace

RankProcesses::RankProcesses(std::chrono::nanoseconds grace)
    : grace_(grace), signals_(signals_to_wait_for()) {
  // Were it ignored, the exit codes of the ranks would be lost.
  std::signal(SIGCHLD, SIG_DFL);
  // They wait until they are asked for, so none can slip in between looking and waiting.
  sigprocmask(SIG_BLOCK, &signals_, &inherited_mask_);
  // What loses its parent becomes a child of ours: a group is gone when we have no child in it.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

RankProcesses::~RankProcesses() {
  signal_groups(SIGKILL);
  for (const Rank& rank : ranks_) {
    while (rank.group_left && waitpid(-rank.pid, nullptr, 0) > 0) {
    }
  }
  sigprocmask(SIG_SETMASK, &inherited_mask_, nullptr);
}

void RankProcesses::start(char* const* argv) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw Error(std::string("cannot make a pipe: ") + std::strerror(errno));
  }
  const pid_t launcher = getpid();
  const pid_t pid = fork();
  if (pid == 0) become_rank(argv, launcher, ends[1]);
  const int fork_error = errno;
  close(ends[1]);
  int exec_error = 0;
  // Nothing comes if the program runs: that closes the other end.
  const bool failed = pid > 0 && read(ends[0], &exec_error, sizeof exec_error) > 0;
  close(ends[0]);
  if (pid < 0) {
    throw Error("cannot start rank " + std::to_string(ranks_.size()) +
                ", start fewer with -n: " + std::strerror(fork_error));
  }
  ranks_.push_back({.pid = pid});
  if (failed) throw ArgumentError(std::string("cannot run '") + argv[0] + "': " + std::strerror(exec_error));
}

/// In the new process: only what is safe between fork and exec.
void RankProcesses::become_rank(char* const* argv, pid_t launcher, int to_parent) const {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The launcher may have been gone before we asked to go with it.
  if (getppid() != launcher) _exit(kKilled + SIGKILL);
  sigprocmask(SIG_SETMASK, &inherited_mask_, nullptr);
  execvp(argv[0], argv);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(to_parent, &error, sizeof error);
  _exit(kNotRun);
}

int RankProcesses::wait() {
  while (std::ranges::any_of(ranks_, &Rank::group_left)) {
    const int number = next_signal();
    if (number == SIGCHLD) {
      reap();
    } else if (number == SIGUSR1) {
      signal_groups(number);  // ranks that understand it tell what they do, and go on
    } else if (number != 0) {
      end(kKilled + number, number);
    } else if (std::exchange(ask_at_end_, false)) {
      ask_to_end(SIGTERM);
    } else {
      signal_groups(SIGKILL);
      next_at_.reset();
    }
  }
  return exit_code_.value_or(0);
}

void RankProcesses::signal_groups(int number) const {
  for (const Rank& rank : ranks_) {
    if (rank.group_left) kill(-rank.pid, number);
  }
}

void RankProcesses::end(int exit_code, int number) {
  if (!exit_code_) {
    exit_code_ = exit_code;
    ask_to_end(number);
  } else {
    signal_groups(number);
  }
}

void RankProcesses::ask_to_end(int number) {
  next_at_ = Clock::now() + grace_;
  signal_groups(number);
}

int RankProcesses::next_signal() const {
  while (true) {
    int number = 0;
    if (next_at_) {
      const std::chrono::nanoseconds left = *next_at_ - Clock::now();
      if (left.count() <= 0) return 0;
      const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
      const timespec timeout{.tv_sec = seconds.count(), .tv_nsec = (left - seconds).count()};
      number = sigtimedwait(&signals_, nullptr, &timeout);
    } else {
      number = sigwaitinfo(&signals_, nullptr);
    }
    if (number > 0) return number;
  }
}

void RankProcesses::reap() {
  std::optional<std::pair<std::size_t, int>> failed;
  int status = 0;
  for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    const auto rank = std::ranges::find_if(
        ranks_, [pid](const Rank& candidate) { return candidate.running && candidate.pid == pid; });
    if (rank == ranks_.end()) continue;
    rank->running = false;
    if (status != 0 && !failed) failed.emplace(rank - ranks_.begin(), status);
  }
  for (Rank& rank : ranks_) {
    if (!rank.running && rank.group_left) rank.group_left = waitpid(-rank.pid, nullptr, WNOHANG) >= 0;
  }
  if (exit_code_) return;
  const bool others = std::ranges::any_of(ranks_, &Rank::running);
  if (failed) {
    end_after_failure(failed->first, failed->second, others);
  } else if (!others) {
    end(0, SIGTERM);  // what the ranks have left running
  }
}

void RankProcesses::end_after_failure(std::size_t rank, int status, bool others) {
  const bool killed = WIFSIGNALED(status);
  const int number = killed ? WTERMSIG(status) : WEXITSTATUS(status);
  failure_ = "rank " + std::to_string(rank) + " (pid " + std::to_string(ranks_[rank].pid) + ") " +
             (killed ? "was killed by signal " : "exited with code ") + std::to_string(number);
  if (killed) failure_ += std::string(" (") + strsignal(number) + ")";
  if (others) failure_ += "; ended the others";
  exit_code_ = killed ? kKilled + number : number;
  ask_at_end_ = true;
  next_at_ = Clock::now() + kOwnEnd;
}

}  // namespace pipewright::cli
