#pragma once

#include <algorithm>
#include <cctype>
#include <sstream>
#include <string>
#include <vector>

#include "pipewright/frontend/partition.h"
#include "pipewright/frontend/split.h"

namespace pipewright {

/// A number of stages, cut anywhere; `marks`, and at its marks; the node to cut before, `:7`; or modules to
/// cut before, `blocks.1,blocks.2`, and after, `+blocks.2`.
inline std::vector<std::size_t> cuts_of(const Graph& graph, const std::string& text) {
  std::vector<std::size_t> cuts;
  if (std::isdigit(static_cast<unsigned char>(text.front())) != 0) {
    const std::size_t stages = std::min<std::size_t>(std::stoul(text), graph.nodes.size());
    for (std::size_t stage = 1; stage < stages; ++stage) cuts.push_back(stage * graph.nodes.size() / stages);
    return cuts;
  }
  if (text == "marks") return marked_cuts(graph);
  if (text.starts_with(':')) return {std::stoul(text.substr(1))};
  std::istringstream names(text);
  for (std::string name; std::getline(names, name, ',');) {
    cuts.push_back(name.starts_with('+') ? cut_after(graph, name.substr(1)) : cut_before(graph, name));
  }
  return cuts;
}

}  // namespace pipewright
