#include "pipewright/frontend/devices.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <set>

#include "frontend/graph/aliases.h"
#include "frontend/graph/uses.h"

namespace pipewright {
namespace {

/// Where it makes something from nothing and does not say where: on the device that is the default.
bool makes_from_nothing(const GraphNode& node, const Graph& graph) {
  bool takes_tensors = false;
  for_each_use(node, [&](ValueId value) { takes_tensors |= graph.recorded.contains(value); });
  return !takes_tensors;
}

/// Values that share memory with what is written to.
std::set<ValueId> written_values(const Graph& graph) {
  std::set<ValueId> all;
  const Aliases aliases(graph);
  for (const Aliases::Written& written : aliases.written())
    all.insert(written.values.begin(), written.values.end());
  return all;
}

/// Operators of another device may lay out their results differently, so that what was a view of one cannot
/// be one: it is copied then. Not where that could be seen, because somebody writes to it.
void let_views_be_copies(GraphNode& node, const std::set<ValueId>& written) {
  if (node.op != "aten::view" || !node.overload.empty() || written.contains(node.outputs.at(0).at(0))) return;
  node.op = "aten::reshape";
}

void move_node(GraphNode& node, const Graph& graph, at::Device device) {
  for (NodeModes::Autocast& autocast : node.modes.autocast) autocast.device = device.type();
  const auto op = c10::Dispatcher::singleton().findSchema({node.op, node.overload});
  if (!op) return;
  const auto& wanted = op->schema().arguments();
  for (std::size_t at = 0; at < std::min(wanted.size(), node.arguments.size()); ++at) {
    auto* constant = std::get_if<c10::IValue>(&node.arguments[at].is);
    if (!constant) continue;
    const bool is_open =
        wanted[at].name() == "device" && constant->isNone() && makes_from_nothing(node, graph);
    if (constant->isDevice() || is_open) *constant = device;
  }
}

}  // namespace

Graph on_device(Graph graph, at::Device device) {
  const std::set<ValueId> written = device.is_cpu() ? std::set<ValueId>() : written_values(graph);
  for (GraphNode& node : graph.nodes) {
    move_node(node, graph, device);
    if (!device.is_cpu()) let_views_be_copies(node, written);
  }
  for (auto& [value, tensor] : graph.constants) tensor = tensor.to(device);
  return graph;
}

std::map<std::string, at::Tensor> on_device(const std::map<std::string, at::Tensor>& state,
                                            at::Device device) {
  std::map<std::string, at::Tensor> there;
  std::map<const at::TensorImpl*, at::Tensor> moved;
  for (const auto& [name, tensor] : state) {
    at::Tensor& copy = moved[tensor.unsafeGetTensorImpl()];
    if (!copy.defined()) copy = tensor.detach().to(device).set_requires_grad(tensor.requires_grad());
    there[name] = copy;
  }
  return there;
}

}  // namespace pipewright
