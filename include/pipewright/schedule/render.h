#pragma once

#include <span>
#include <string>

#include "pipewright/schedule/costs.h"
#include "pipewright/schedule/schedule.h"
#include "pipewright/schedule/timeline.h"

namespace pipewright {

/// A timeline with what a drawing says about it. Simulated and measured ones
/// are drawn alike.
struct Drawing {
  std::string name;
  std::string label;
  std::string source = "simulated";
  Timeline timeline;
  Costs costs;
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
