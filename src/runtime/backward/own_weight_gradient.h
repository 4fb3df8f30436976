#pragma once

#include "pipewright/runtime/stage_model.h"

namespace pipewright {

/// Where a model computes its weight gradients itself: has it do so, and adds them to its module's
/// parameters. Throws Error where they do not fit these.
void run_own_weight_gradient(const StageModel& model, const WeightGradient& gradient);

}  // namespace pipewright
