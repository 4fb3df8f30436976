#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "commands.h"
#include "pipewright/base/error.h"
#include "rank_processes.h"

namespace pipewright::cli {
namespace {

constexpr int kMostRanks = 1024;
constexpr int kLargestPort = 65535;
constexpr int kMostRestarts = 1'000'000;
constexpr double kLongestGrace = 86400;

struct LaunchOptions {
  int ranks = 0;
  double grace = 5;
  int master_port = 0;  ///< 0: a free one.
  int restarts = 0;
  std::string program;
};

bool is_free(int port) {
  const int reserved = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool bound =
      reserved >= 0 && bind(reserved, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  close(reserved);
  return bound;
}

/// A port of 127.0.0.1 that nobody has now. Not from the range from which connections take theirs, where
/// one could be gone before rank 0 listens there.
int free_port() {
  constexpr int kFirst = 20000;
  constexpr int kLast = 32000;
  constexpr int kTries = 1000;
  std::random_device random;
  std::uniform_int_distribution<int> ports(kFirst, kLast);
  for (int tries = 0; tries < kTries; ++tries) {
    const int port = ports(random);
    if (is_free(port)) return port;
  }
  throw Error("cannot find a free port, give one with --master-port");
}

void set_variable(const char* name, int value) { setenv(name, std::to_string(value).c_str(), 1); }

/// What is the same in all ranks.
void set_common_variables(const LaunchOptions& options) {
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) set_variable(name, options.ranks);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  set_variable("MASTER_PORT", options.master_port == 0 ? free_port() : options.master_port);
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  setenv("OMP_NUM_THREADS", std::to_string(std::max(1, cores / options.ranks)).c_str(), 0);
}

/// For a terminal the ranks are in the background: it would stop one that reads.
void empty_standard_input() {
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (nothing < 0) throw Error(std::string("cannot open /dev/null: ") + std::strerror(errno));
  dup2(nothing, STDIN_FILENO);
  close(nothing);
}

struct Ended {
  int exit_code;
  std::string failure;  // of a rank; empty where none failed
};

/// From the start of the ranks to the end of the last.
Ended run_once(const LaunchOptions& options, char* const* argv) {
  RankProcesses processes(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(options.grace)));
  for (int rank = 0; rank < options.ranks; ++rank) {
    for (const char* name : {"RANK", "LOCAL_RANK"}) set_variable(name, rank);
    processes.start(argv);
  }
  const int exit_code = processes.wait();
  return {exit_code, processes.failure()};
}

/// `rest`: what the parser left over, which is -- and the program's arguments. Returns the exit code.
int run(const LaunchOptions& options, std::vector<std::string> rest) {
  if (rest.empty() || rest.front() != "--") {
    const bool option = !rest.empty() && rest.front().starts_with('-');
    throw ArgumentError((option ? "launch has no option " + rest.front() + "; " : "") +
                        "the command and its arguments come after --");
  }
  if (!(options.grace >= 0 && options.grace <= kLongestGrace)) {
    throw ArgumentError("--grace must be from 0 to 86400 seconds");
  }
  rest.front() = options.program;
  std::vector<char*> argv;
  argv.reserve(rest.size() + 1);
  for (std::string& argument : rest) argv.push_back(argument.data());
  argv.push_back(nullptr);

  empty_standard_input();
  for (int restart = 0;; ++restart) {
    set_common_variables(options);
    set_variable("TORCHELASTIC_RESTART_COUNT", restart);
    const Ended ended = run_once(options, argv.data());
    if (!ended.failure.empty()) std::cerr << "pipewright: " << ended.failure << '\n';
    if (ended.failure.empty() || restart == options.restarts) return ended.exit_code;
    std::cerr << "pipewright: restart " << restart + 1 << " of " << options.restarts << '\n';
  }
}

/// Help with the -- in the usage.
class LaunchHelp : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App* /*app*/, std::string name) const override {
    return "Usage: " + name + " -n N [OPTIONS] -- COMMAND [ARGS...]\n";
  }
};

}  // namespace

void add_launch(CLI::App& app) {
  auto options = std::make_shared<LaunchOptions>();
  auto* command = app.add_subcommand(
      "launch", "Run a command as N ranks, processes of this machine; when one fails, end the others");
  command->formatter(std::make_shared<LaunchHelp>());
  command->add_option("-n", options->ranks, "Number of ranks")->required()->check(CLI::Range(1, kMostRanks));
  command
      ->add_option("--grace", options->grace,
                   "Seconds between the signal that asks ranks to end and the one that kills them")
      ->capture_default_str();
  command->add_option("--master-port", options->master_port, "Where the ranks meet [a free port]")
      ->check(CLI::Range(1, kLargestPort));
  command
      ->add_option("--restarts", options->restarts,
                   "When a rank fails, start all of them again, at most so many times")
      ->check(CLI::Range(0, kMostRestarts))
      ->capture_default_str();
  command->add_option("command", options->program, "What to run, found through PATH; its arguments follow")
      ->required();
  // What follows the command is left over, as it is.
  command->prefix_command();
  command->footer(
      "A rank has RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its\n"
      "environment, TORCHELASTIC_RESTART_COUNT, and OMP_NUM_THREADS, which is cores / N unless you set it.\n"
      "Its standard input is empty. A command that saves checkpoints goes on from the last one, where it is\n"
      "told to: 'pipewright launch -n 2 --restarts 3 -- pipewright train --checkpoint DIR --resume ...'.\n"
      "SIGUSR1 is passed on to the ranks: 'pipewright train' writes its flight record then, and goes on.\n"
      "Exit codes: 0 all ranks ended with 0; that of the first rank that failed; 128 + the number of the\n"
      "signal that ended that rank, or that came to launch; 2 wrong usage, or the command cannot be run.");
  command->callback([options, command] { std::exit(run(*options, command->remaining())); });
}

}  // namespace pipewright::cli
