#pragma once

#include "pipewright/schedule/costs.h"
#include "pipewright/schedule/schedule.h"
#include "pipewright/schedule/timeline.h"

namespace pipewright {

/// Runs a schedule against a clock: every rank in the order of its list, every
/// action as early as its data allows. Compute-only: data sets out for another
/// rank when it is computed. Lowered: a message sets out when both its SEND and
/// its RECV have been reached; neither blocks the rank, compute waits for the data.
///
/// Throws InvalidSchedule if the schedule is not valid in its format, ArgumentError
/// if `costs` are for another number of stages.
Timeline simulate(const Schedule& schedule, const Costs& costs);

}  // namespace pipewright
