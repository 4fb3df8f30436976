#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/runtime/pipeline.h"
#include "runtime/executor/rank_executor.h"

namespace pipewright {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// The parameters of all stages by their global names, each tensor once.
NamedTensors named_parameters(const StageModels& models);

/// Parameters and buffers. Throws ArgumentError if two tensors have one name.
Pipeline::StateDict state_of(const StageModels& models);

/// Copies `values` into `state`. Throws ArgumentError before anything is changed.
void load_state(const Pipeline::StateDict& values, const Pipeline::StateDict& state);

}  // namespace pipewright
