#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "pipewright/frontend/graph.h"

namespace pipewright {

/// A graph in pieces, one a stage.
struct PartitionedGraph {
  /// Each takes what the one before it gives. What a later stage needs goes through those between.
  std::vector<Graph> stages;
  /// Names of parameters that are one tensor on several stages, for PipelineOptions::tied.
  std::vector<std::vector<std::string>> tied;
};

/// `cuts`: the node that each stage but the first begins with, in ascending order. Throws ArgumentError for
/// cuts that do not fit. A parameter that several stages use is a copy on each but the first, under another
/// of its names or, where it has no more, `NAME@STAGE`.
PartitionedGraph partition(const Graph& graph, const std::vector<std::size_t>& cuts);

/// Where stages begin that the model has marks for: `pipe_split` of traced models, and of
/// torch.distributed.pipelining in exported ones. Marks without operators between them are one; those at the
/// ends are none.
std::vector<std::size_t> marked_cuts(const Graph& graph);

/// The first node of a module, by its name in the model, or of one inside of it. Throws ArgumentError that
/// lists the modules where there is none.
std::size_t cut_before(const Graph& graph, const std::string& module);
/// The first node after all of its nodes.
std::size_t cut_after(const Graph& graph, const std::string& module);

}  // namespace pipewright
