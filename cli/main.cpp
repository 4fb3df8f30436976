#include <array>
#include <exception>
#include <iostream>

#include "commands.h"
#include "pipewright/base/error.h"

int main(int argc, char** argv) {
  using namespace pipewright::cli;
  CLI::App app("Pipewright: pipeline-parallel schedules, generated, checked, lowered, simulated and drawn");
  app.set_version_flag("--version", PIPEWRIGHT_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 fine, 1 the input is judged bad, 2 wrong usage.\n"
      "'pipewright COMMAND --help' tells all about a command.");

  constexpr std::array kCommands = {add_list,     add_generate, add_lower,  add_validate,
                                    add_simulate, add_show,     add_compare};
  for (const auto add : kCommands) add(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kWrongUsage;
  } catch (const Judged&) {
    return kBadInput;
  } catch (const pipewright::ArgumentError& error) {
    std::cerr << "pipewright: " << error.what() << '\n';
    return kWrongUsage;
  } catch (const std::exception& error) {
    std::cerr << "pipewright: " << error.what() << '\n';
    return kBadInput;
  }
  return 0;
}
