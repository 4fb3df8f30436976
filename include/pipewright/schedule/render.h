#pragma once

#include <span>
#include <string>
#include <vector>

#include "pipewright/schedule/costs.h"
#include "pipewright/schedule/schedule.h"
#include "pipewright/schedule/timeline.h"

namespace pipewright {

/// A time in which a rank could not go on: drawn in its lane, and not like computing.
struct Wait {
  Rank rank = 0;
  /// What could not go on; a bubble where it was no action.
  Action action;
  double start = 0;
  double end = 0;
  /// What for, as a whole sentence.
  std::string text;
  /// It has not come to an end: the drawing ends before it.
  bool lasts = false;
};

/// A timeline with what a drawing says about it. Simulated and measured ones
/// are drawn alike.
struct Drawing {
  std::string name;
  std::string label;
  std::string source = "simulated";
  Timeline timeline;
  Costs costs;
  std::vector<Wait> waits = {};
  /// Actions that had not ended yet where the drawing ends them.
  std::vector<TimelinePosition> unfinished = {};
  /// Otherwise it is a part of a run: its length, bubble, memory and critical path mean nothing and are
  /// left out.
  bool complete = true;
};

/// The cells as they stand: a row a time step, a column a rank, as
/// torch.distributed.pipelining prints its schedules.
std::string render_grid(const Schedule& schedule);

struct TerminalOptions {
  /// Columns to fill; 0 for as many as it takes to write in every box.
  int columns = 0;
  bool color = true;
};
/// A line a rank, time to the right.
std::string render_terminal(const Drawing& drawing, const TerminalOptions& options = {});

std::string render_svg(const Drawing& drawing);

/// One self-contained page: all drawings under each other on one time axis.
std::string render_html(const std::string& title, std::span<const Drawing> drawings);

/// Chrome trace events, for Perfetto and chrome://tracing: a process a rank,
/// one unit of time as a millisecond, a counter for its activation memory.
std::string render_trace(const Drawing& drawing);

}  // namespace pipewright
