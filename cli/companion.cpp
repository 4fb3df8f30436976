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

constexpr const char* kCompanion = "pipewright-torch";

/// Becomes the program that runs models: it loads libtorch, which this one does not.
[[noreturn]] void become(const std::string& command, std::vector<std::string> arguments) {
  const std::filesystem::path companion =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / kCompanion;
  arguments.insert(arguments.begin(), {companion, command});
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

void add(CLI::App& app, const std::string& name, const std::string& description) {
  auto* command = app.add_subcommand(name, description);
  command->set_help_flag();
  command->prefix_command();
  command->callback([command, name] { become(name, command->remaining()); });
}

}  // namespace

void add_split(CLI::App& app) {
  add(app, "split", "Show how an exported model is cut into stages; write them");
}
void add_train(CLI::App& app) {
  add(app, "train", "Train an exported model, or a small language model, by a schedule");
}
void add_run(CLI::App& app) { add(app, "run", "Run an exported model on the rows of a file, in a pipeline"); }
void add_bench(CLI::App& app) {
  add(app, "bench", "Train a small language model by several schedules and set their times side by side");
}

}  // namespace pipewright::cli
