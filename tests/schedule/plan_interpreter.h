#pragma once

#include "pipewright/schedule/schedule.h"

namespace pipewright {

/// What happens when a schedule is run.
enum class Outcome { Right, Wrong, Hangs };

/// Runs a schedule the plain way, one cell of one rank at a time, with sends
/// that block until their receive is reached: independent of the validator and
/// of the proof, and the judge of both. `intended` is the schedule that it was
/// made from: it says where stages live, how many microbatches there are, which
/// skips the model has, and which kinds of actions the plan uses. Data of a compute-only schedule moves
/// by itself.
Outcome interpret(const Schedule& schedule, const Schedule& intended);

}  // namespace pipewright
