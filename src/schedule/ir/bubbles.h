#pragma once

#include "pipewright/schedule/schedule.h"
#include "schedule/ir/replay.h"

namespace pipewright {

/// The schedule with every bubble removed.
Schedule without_bubbles(const Schedule& schedule);

/// Adds bubbles so that the columns become time steps: one cell a step, each
/// after the cells that it depends on. Bubbles already there count as cells.
/// REQUIRES: a valid compute-only schedule.
void insert_bubbles(Schedule& schedule, Replay::Dependencies dependencies = Replay::Dependencies::All);

}  // namespace pipewright
