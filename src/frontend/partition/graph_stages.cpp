#include "pipewright/frontend/graph_stages.h"

#include <memory>
#include <utility>

#include "pipewright/frontend/devices.h"
#include "pipewright/frontend/graph_module.h"

namespace pipewright {

StageFactory graph_stages(const PartitionedGraph& parts, StateLoader load, StageDevices device_of) {
  return [&parts, load = std::move(load), device_of = std::move(device_of)](Stage stage) {
    Graph part = parts.stages.at(static_cast<std::size_t>(stage));
    std::map<std::string, at::Tensor> state = load(part);
    if (device_of) {
      part = on_device(std::move(part), device_of(stage));
      state = on_device(state, device_of(stage));
    }
    StageModel built(std::make_shared<GraphModule>(std::move(part), state));
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
