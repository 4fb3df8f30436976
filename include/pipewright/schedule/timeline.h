#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/schedule/costs.h"
#include "pipewright/schedule/schedule.h"

namespace pipewright {

/// An action with the time at which it ran. For a message: from when it was
/// posted to when its data arrived; messages take none of the rank's time. The
/// parts of an OVERLAP_F_B that run as one block share its times.
struct TimedAction {
  Action action;
  double start = 0;
  double end = 0;
  /// What its stage holds for its microbatch when it has ended, in MiB, where that was measured.
  std::optional<double> held = {};
};

/// When everything ran, in the order of each rank's list. A simulated timeline
/// and a measured one are the same type.
struct Timeline {
  std::vector<std::vector<TimedAction>> ranks;
  Placement placement;
  Microbatch microbatches = 0;
  std::vector<Skip> skips = {};
};

/// One rank's share of a timeline.
struct RankMetrics {
  double span = 0;  ///< From its own first start to its last end.
  double busy = 0;  ///< Time in compute actions.
  double idle = 0;  ///< Makespan − busy.
  double peak_activation = 0;
};

struct Metrics {
  double start = 0;     ///< When the first compute action starts.
  double makespan = 0;  ///< From the first start to the last end over all ranks.
  double ideal = 0;     ///< The busiest rank's compute time: no schedule is shorter.
  /// 1 − ideal / makespan.
  double bubble_rate_makespan = 0;
  /// 1 − ideal / longest span of a rank, the measure of the zero-bubble papers.
  double bubble_rate_span = 0;
  std::vector<RankMetrics> ranks;

  double longest_span() const;
  double peak_activation() const;
};
Metrics measure(const Timeline& timeline, const Costs& costs);

/// A rank's activation memory: from each time on, the value.
using MemoryCurve = std::vector<std::pair<double, double>>;
MemoryCurve activation_curve(const std::vector<TimedAction>& rank, const Costs& costs);

/// An action of a timeline, by its place in the rank's list.
struct TimelinePosition {
  Rank rank;
  std::size_t position;
  friend bool operator==(const TimelinePosition&, const TimelinePosition&) = default;
};

/// A chain of actions that explains the makespan: each could start only when the
/// one before it had ended, or its message had arrived. In order of time.
std::vector<TimelinePosition> critical_path(const Timeline& timeline);

}  // namespace pipewright
