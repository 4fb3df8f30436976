#pragma once

#include "frontend/trace/recording.h"
#include "pipewright/frontend/trace.h"

namespace pipewright {

/// Runs the model and its graph with the same random numbers. Throws Error where outputs, gradients or
/// buffers differ. The model's state is afterwards as it was.
void check_against(const StageModel& model, const ModelState& state, const TracedModel& traced,
                   const Sample& sample);

}  // namespace pipewright
