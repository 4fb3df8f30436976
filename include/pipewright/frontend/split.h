#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "pipewright/base/ids.h"
#include "pipewright/frontend/graph.h"
#include "pipewright/runtime/values.h"

namespace pipewright {

// Where to cut a graph. Cuts are for `partition`: the node that each stage but the first begins with.

/// What each node of a graph costs, in any unit.
using NodeCosts = std::vector<double>;

/// From the sizes that the graph has recorded: the operations of matrix products, convolutions, attention and
/// recurrent layers, and for all others the elements that they read and write, each worth some operations.
/// The same on every machine.
NodeCosts estimate_costs(const Graph& graph);

/// The seconds that each node takes in a forward on this thread, the shortest of a few. `state`: as for a
/// GraphModule; `inputs`: as for its forward. Buffers are left as they are.
NodeCosts measure_costs(const Graph& graph, const std::map<std::string, at::Tensor>& state,
                        const Values& inputs);

/// The elements of the parameters that a node is the first to use.
NodeCosts parameter_costs(const Graph& graph);

/// So that the most expensive stage is as cheap as can be, or at most 5 % above that where less goes from
/// stage to stage then. Throws ArgumentError where the graph cannot be cut into so many.
std::vector<std::size_t> balanced_cuts(const Graph& graph, Stage stages, const NodeCosts& costs);

/// By the modules of each stage, in their order: a stage begins with the first node of one of its own. What
/// is in no list goes with what runs before it. Throws ArgumentError that names a module that runs elsewhere,
/// or not at all.
std::vector<std::size_t> listed_cuts(const Graph& graph, const std::vector<std::vector<std::string>>& stages);

/// The first node of a module, by its name in the model, or of one inside of it. Throws ArgumentError that
/// lists the modules where there is none.
std::size_t cut_before(const Graph& graph, const std::string& module);
/// The first node after all of its nodes.
std::size_t cut_after(const Graph& graph, const std::string& module);

/// Where stages begin that the model has marks for: `pipe_split` of traced models, and of
/// torch.distributed.pipelining in exported ones. Marks without operators between them are one; those at the
/// ends are none.
std::vector<std::size_t> marked_cuts(const Graph& graph);

/// The bytes of the tensors that go from the stage that ends before each node to those from there on, as far
/// as sizes are recorded.
std::vector<double> bytes_across(const Graph& graph);

}  // namespace pipewright
