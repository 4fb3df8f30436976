#pragma once

#include <CLI/CLI.hpp>

namespace pipewright::cli {

CLI::App* add_train_command(CLI::App& app);

}  // namespace pipewright::cli
