#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "pipewright/frontend/graph.h"
#include "pipewright/runtime/routes.h"

namespace pipewright {

/// A graph in pieces, one a stage.
struct PartitionedGraph {
  /// Each gives what later ones need of it.
  std::vector<Graph> stages;
  /// What each takes from which, for PipelineOptions::routes.
  Routes routes;
  /// Names of parameters that are one tensor on several stages, for PipelineOptions::tied.
  std::vector<std::vector<std::string>> tied;
};

/// What becomes of a parameter that several stages use.
enum class SharedParameters {
  Replicate,  ///< A copy on each but the first, under another of its names or, where it has no more,
              ///< `NAME@STAGE`.
  Transmit,   ///< The first sends it to the others with each microbatch, and gets its gradient back.
};

/// `cuts`: the node that each stage but the first begins with, in ascending order. Throws ArgumentError for
/// cuts that do not fit.
PartitionedGraph partition(const Graph& graph, const std::vector<std::size_t>& cuts,
                           SharedParameters shared = SharedParameters::Replicate);

}  // namespace pipewright
