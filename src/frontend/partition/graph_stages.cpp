#include "pipewright/frontend/graph_stages.h"

#include <memory>
#include <utility>

#include "pipewright/base/error.h"
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

std::map<std::string, at::Tensor> whole_state(const Graph& whole,
                                              const std::map<std::string, at::Tensor>& of_stages) {
  std::map<std::string, at::Tensor> state;
  for (const auto* names : {&whole.parameters, &whole.buffers}) {
    std::map<ValueId, at::Tensor> by_value;
    for (const auto& [name, value] : *names) {
      if (const auto found = of_stages.find(name); found != of_stages.end())
        by_value.emplace(value, found->second);
    }
    for (const auto& [name, value] : *names) {
      const auto found = by_value.find(value);
      if (found == by_value.end()) throw Error("no stage has '" + name + "'");
      state[name] = found->second;
    }
  }
  return state;
}

}  // namespace pipewright
