#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "pipewright/schedule/costs.h"
#include "pipewright/schedule/generate.h"
#include "pipewright/schedule/lower.h"
#include "pipewright/schedule/render.h"

namespace pipewright::cli {

/// --ranks, --microbatches, --stages-per-rank, --placement.
struct SizeOptions {
  int ranks = 0;
  int microbatches = 0;
  int stages_per_rank = 0;
  std::string placement = "loop";

  void add_to(CLI::App& command, bool required);
  ScheduleSpec spec(const std::string& name) const;
  /// For one of several schedules: --stages-per-rank goes to those that leave it open.
  SizeOptions among_others(const std::string& name) const;
};

/// --skip: what the model hands past stages.
struct SkipOptions {
  std::vector<std::string> skips;

  CLI::Option* add_to(CLI::App& command);
  /// Adds them to those that the schedule has.
  void apply(Schedule& schedule) const;
};

/// A schedule by name and sizes, or from a CSV file.
struct SourceOptions {
  std::string name;
  SizeOptions sizes;
  std::string csv;
  SkipOptions skips;
  bool lowered = false;

  void add_to(CLI::App& command);
  /// Generates or reads it, and lowers it if told.
  Schedule load() const;
  /// What drawings call it.
  std::string title() const;
};

/// --f, --i, --w, --comm, --overlap or --costs.
struct CostOptions {
  RankCosts rank;
  std::string overlap;  ///< Empty: as the costs say.
  std::string file;

  void add_to(CLI::App& command);
  Costs load(const Placement& placement) const;
};

/// --columns, --color: a timeline in the terminal.
struct TimelineOptions {
  int columns = 0;
  std::string color = "auto";

  void add_to(CLI::App& command);
  /// `to_file`: it does not go to standard output, whatever that is.
  TerminalOptions load(bool to_file) const;
};

/// --defer-recv, --max-active-stages, --merge-backward.
void add_lower_options(CLI::App& command, LowerOptions& options);

/// Simulates the schedule for drawing.
Drawing simulated(const Schedule& schedule, const CostOptions& costs, const std::string& name);

}  // namespace pipewright::cli
