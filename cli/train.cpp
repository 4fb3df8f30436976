#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "commands.h"
#include "pipewright/base/error.h"

namespace pipewright::cli {
namespace {

constexpr const char* kCompanion = "pipewright-train";

/// Becomes the program that trains: it loads libtorch, which this one does not.
[[noreturn]] void run(std::vector<std::string> arguments) {
  const std::filesystem::path companion =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / kCompanion;
  arguments.insert(arguments.begin(), companion);
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  execv(companion.c_str(), argv.data());
  if (errno == ENOENT) {
    throw Error("there is no " + companion.string() + ": this pipewright was built without libtorch");
  }
  throw Error("cannot run " + companion.string() + ": " + std::strerror(errno));
}

}  // namespace

void add_train(CLI::App& app) {
  auto* command =
      app.add_subcommand("train", "Train a small language model by a schedule, on ranks in threads");
  command->set_help_flag();
  command->prefix_command();
  command->callback([command] { run(command->remaining()); });
}

}  // namespace pipewright::cli
