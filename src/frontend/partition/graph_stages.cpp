#include "pipewright/frontend/graph_stages.h"

#include <memory>
#include <utility>

#include "pipewright/frontend/graph_module.h"

namespace pipewright {

StageFactory graph_stages(const PartitionedGraph& parts, StateLoader load) {
  return [&parts, load = std::move(load)](Stage stage) {
    const Graph& part = parts.stages.at(static_cast<std::size_t>(stage));
    StageModel built(std::make_shared<GraphModule>(part, load(part)));
    built.global_name = [](const std::string& name) { return name; };
    return built;
  };
}

std::vector<std::string> names_in_whole(const Graph& whole, const std::string& of_stage) {
  std::vector<std::string> names;
  const auto own = whole.parameters.find(of_stage.substr(0, of_stage.find(kCopy)));
  if (own == whole.parameters.end()) return names;
  for (const auto& [name, value] : whole.parameters) {
    if (value == own->second) names.push_back(name);
  }
  return names;
}

}  // namespace pipewright
