#include <algorithm>

#include "frontend/graph/number_operators.h"
#include "pipewright/frontend/partition.h"

namespace pipewright {

std::vector<std::size_t> marked_cuts(const Graph& graph) {
  const auto is_mark = [](const GraphNode& node) { return node.op == kPipeSplit; };
  std::vector<std::size_t> cuts;
  bool is_begun = false;  // whether the stage has operators
  for (std::size_t at = 0; at < graph.nodes.size(); ++at) {
    if (!is_mark(graph.nodes[at])) {
      is_begun = true;
    } else if (is_begun) {
      cuts.push_back(at);
      is_begun = false;
    }
  }
  if (!is_begun && !cuts.empty()) cuts.pop_back();
  return cuts;
}

}  // namespace pipewright
