#include <array>

#include "commands.h"

int main(int argc, char** argv) {
  using namespace pipewright::cli;
  CLI::App app(
      "Pipewright: pipeline-parallel schedules, generated, checked, lowered, simulated, drawn and run");
  app.set_version_flag("--version", PIPEWRIGHT_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 fine, 1 the input is judged bad, 2 wrong usage.\n"
      "'pipewright COMMAND --help' tells all about a command.");

  constexpr std::array kCommands = {add_list, add_generate, add_lower,   add_validate, add_simulate,
                                    add_show, add_compare,  add_explain, add_split,    add_train,
                                    add_run,  add_bench,    add_launch};
  for (const auto add : kCommands) add(app);
  return run_app(app, argc, argv);
}
