#pragma once

#include <CLI/CLI.hpp>

namespace pipewright::cli {

CLI::App* add_split_command(CLI::App& app);
CLI::App* add_run_command(CLI::App& app);

}  // namespace pipewright::cli
