#include "frontend/graph/number_operators.h"
#include "pipewright/frontend/split.h"

namespace pipewright {

std::vector<std::size_t> marked_cuts(const Graph& graph) {
  std::vector<std::size_t> cuts;
  bool is_begun = false;  // whether the stage has operators
  for (std::size_t at = 0; at < graph.nodes.size(); ++at) {
    const GraphNode& node = graph.nodes[at];
    if (node.op == kPipeSplit) {
      if (is_begun) cuts.push_back(at);
      is_begun = false;
    } else if (!is_on_numbers(node)) {
      is_begun = true;
    }
  }
  if (!is_begun && !cuts.empty()) cuts.pop_back();
  return cuts;
}

}  // namespace pipewright
