#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "pipewright/frontend/partition.h"
#include "pipewright/runtime/stage_model.h"

namespace pipewright {

/// The tensors of a graph's parameters and buffers, by name.
using StateLoader = std::function<std::map<std::string, at::Tensor>(const Graph& of)>;

/// Where a stage computes.
using StageDevices = std::function<at::Device(Stage)>;

/// For a Pipeline: each stage a GraphModule of its piece, whose parameters have their names in the whole
/// model. `load` is called for the stages that are built, and no others; `parts` outlives the pipeline's
/// construction. `device_of` not given: where the graph and its tensors are.
StageFactory graph_stages(const PartitionedGraph& parts, StateLoader load, StageDevices device_of = {});

/// The names that a stage's parameter has in the whole model.
std::vector<std::string> names_in_whole(const Graph& whole, const std::string& of_stage);

}  // namespace pipewright
