#pragma once

#include <span>

#include "pipewright/schedule/costs.h"
#include "pipewright/schedule/timeline.h"

namespace pipewright {

/// What each stage's actions cost in measured timelines, in milliseconds and MiB: the median
/// over steps and microbatches. A kind that never ran is taken from the others: I and W as halves
/// of B, B as their sum. Memory is that of training steps; none where there are only others.
Costs measured_costs(std::span<const Timeline> steps);

}  // namespace pipewright
