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

/// For a Pipeline: each stage a GraphModule of its piece, whose parameters have their names in the whole
/// model. `load` is called for the stages that are built, and no others; `parts` outlives the pipeline's
/// construction.
StageFactory graph_stages(const PartitionedGraph& parts, StateLoader load);

/// The names that a stage's parameter has in the whole model.
std::vector<std::string> names_in_whole(const Graph& whole, const std::string& of_stage);

}  // namespace pipewright
