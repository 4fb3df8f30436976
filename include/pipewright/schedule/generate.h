#pragma once

#include <span>
#include <string>
#include <string_view>

#include "pipewright/schedule/schedule.h"

namespace pipewright {

/// What to generate. `stages_per_rank` 0 means the schedule's own default.
struct ScheduleSpec {
  std::string name;
  Rank ranks = 1;
  Microbatch microbatches = 1;
  int stages_per_rank = 0;
  /// Only forward-only leaves the placement open, also for ranks with unequal numbers of
  /// stages; empty means looped.
  Placement placement = {};
};

/// One row of the table of schedules.
struct ScheduleInfo {
  std::string_view name;
  /// Stages a rank: the default and the least and most that the schedule allows.
  int default_stages_per_rank;
  int min_stages_per_rank;
  int max_stages_per_rank;
  std::string_view placement;
  std::string_view summary;
};

/// Every schedule that `make_schedule` knows, in the order of their age.
std::span<const ScheduleInfo> known_schedules();

/// The row of a schedule by its name, whatever its case. Throws ArgumentError
/// that lists the nearest names.
const ScheduleInfo& find_schedule(std::string_view name);

/// Generates the compute order of a schedule, for any number of microbatches ≥ 1.
/// Throws ArgumentError if the name or the sizes do not fit.
Schedule make_schedule(const ScheduleSpec& spec);

}  // namespace pipewright
