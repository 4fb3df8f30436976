#pragma once

#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>
#include <string>

#include "pipewright/base/error.h"

namespace pipewright::cli {

/// Adds a command that has what all commands of this program have.
inline CLI::App* add_command(CLI::App& app, const std::string& name, const std::string& description) {
  CLI::App* command = app.add_subcommand(name, description);
  command->set_version_flag("--version", PIPEWRIGHT_VERSION);
  command->footer("Exit codes: 0 fine, 1 the input is judged bad, 2 wrong usage.");
  return command;
}

/// Does something; libtorch's errors come without the list of stack frames that they bring along.
template <typename Do>
void with_short_errors(Do something) {
  try {
    something();
  } catch (const c10::Error& error) {
    throw Error(error.what_without_backtrace());
  }
}

}  // namespace pipewright::cli
