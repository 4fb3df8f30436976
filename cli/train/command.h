#pragma once

#include <CLI/CLI.hpp>

namespace pipewright::cli {

void add_train_command(CLI::App& app);
void add_bench_command(CLI::App& app);

}  // namespace pipewright::cli
