#include <CLI/CLI.hpp>

#include "commands.h"
#include "model/commands.h"
#include "train/command.h"
#include "train/record_on_signal.h"

// What the commands of `pipewright` that run models become: a program of its own, so that the others need no
// libtorch.
int main(int argc, char** argv) {
  using namespace pipewright::cli;
  hold_record_signal();
  CLI::App app("Pipewright: models cut into stages, trained and run by schedules", "pipewright");
  app.set_version_flag("--version", PIPEWRIGHT_VERSION);
  app.require_subcommand(1);
  for (const auto add : {add_split_command, add_train_command, add_run_command, add_bench_command}) add(app);
  return run_app(app, argc, argv);
}
