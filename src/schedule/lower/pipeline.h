#pragma once

#include <functional>
#include <span>

#include "pipewright/schedule/schedule.h"
#include "pipewright/schedule/validate.h"

namespace pipewright {

struct Pass {
  const char* name;
  bool enabled;
  std::function<Schedule(const Schedule&)> run;
  Format format_after;
  /// It only adds or moves what surrounds the compute actions.
  bool keeps_compute;
};

/// Runs the passes on a compute-only schedule. The schedule is checked before
/// the first and after each: throws InvalidSchedule that names the pass.
Schedule run_passes(Schedule schedule, std::span<const Pass> passes);

}  // namespace pipewright
