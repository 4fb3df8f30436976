#pragma once

#include <CLI/CLI.hpp>

namespace pipewright::cli {

/// Exit codes: the input was judged bad; the program was called wrongly.
inline constexpr int kBadInput = 1;
inline constexpr int kWrongUsage = 2;

/// Parses the arguments, runs what they ask for and turns errors into words and exit codes.
int run_app(CLI::App& app, int argc, const char* const* argv);

/// Thrown to end with kBadInput after the diagnostics have been printed.
struct Judged {};

// One file each: adds the subcommand, with what it runs as its callback.
void add_list(CLI::App& app);
void add_generate(CLI::App& app);
void add_lower(CLI::App& app);
void add_validate(CLI::App& app);
void add_simulate(CLI::App& app);
void add_show(CLI::App& app);
void add_compare(CLI::App& app);
void add_explain(CLI::App& app);
void add_split(CLI::App& app);
void add_train(CLI::App& app);
void add_run(CLI::App& app);
void add_bench(CLI::App& app);
void add_launch(CLI::App& app);

}  // namespace pipewright::cli
