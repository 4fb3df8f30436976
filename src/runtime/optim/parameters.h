#pragma once

#include <map>
#include <set>
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

/// What speaks against loading `values` into `state`; empty if nothing does.
/// `elsewhere`: names of what other processes have.
std::string load_problems(const Pipeline::StateDict& values, const Pipeline::StateDict& state,
                          const std::set<std::string>& elsewhere);
/// Copies `values` into `state`. REQUIRES: there are no problems.
void load_state(const Pipeline::StateDict& values, const Pipeline::StateDict& state);

}  // namespace pipewright
