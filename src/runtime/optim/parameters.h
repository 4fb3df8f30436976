#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "pipewright/runtime/pipeline.h"
#include "runtime/collective/data_parallel.h"

namespace pipewright {

/// Name of a parameter or buffer in the unsplit model, from its name in the stage's module.
std::string global_name(Stage stage, const StageModel& model, const std::string& name);

/// The parameters of all stages, whole, each tensor once.
std::vector<LocalParameter> whole_parameters(const StageModels& models);

/// Parameters and buffers. Throws ArgumentError if two tensors have one name.
Pipeline::StateDict state_of(const StageModels& models);

/// What speaks against loading `values` into `state`; empty if nothing does.
/// `elsewhere`: names of what other processes have.
std::string load_problems(const Pipeline::StateDict& values, const Pipeline::StateDict& state,
                          const std::set<std::string>& elsewhere);
/// Copies `values` into `state`. REQUIRES: there are no problems.
void load_state(const Pipeline::StateDict& values, const Pipeline::StateDict& state);

}  // namespace pipewright
