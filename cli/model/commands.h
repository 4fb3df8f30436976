#pragma once

#include <CLI/CLI.hpp>

namespace pipewright::cli {

void add_split_command(CLI::App& app);
void add_run_command(CLI::App& app);

}  // namespace pipewright::cli
