#include "pipewright/frontend/graph_module.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/grad_mode.h>

#include <set>
#include <utility>

#include "frontend/graph/program.h"
#include "pipewright/base/error.h"

namespace pipewright {
namespace {

/// The child by that path, made where it is missing.
torch::nn::Module& child(torch::nn::Module& parent, const std::string& path) {
  if (path.empty()) return parent;
  const std::size_t dot = path.find('.');
  const std::string name = path.substr(0, dot);
  const auto children = parent.named_children();
  const auto* found = children.find(name);
  torch::nn::Module& next =
      found ? **found : *parent.register_module(name, std::make_shared<torch::nn::Module>(name));
  return child(next, dot == std::string::npos ? "" : path.substr(dot + 1));
}

const at::Tensor& tensor_of(const std::string& name, const std::map<std::string, at::Tensor>& state) {
  const auto found = state.find(name);
  if (found == state.end()) throw Error("there is no tensor for '" + name + "'");
  return found->second;
}

}  // namespace

GraphModule::GraphModule(Graph graph, const std::map<std::string, at::Tensor>& state)
    : graph_(std::move(graph)) {
  check(graph_);
  program_ = std::make_unique<GraphProgram>(graph_);
  bind(graph_.parameters, state, /*parameters=*/true);
  bind(graph_.buffers, state, /*parameters=*/false);
  for (const auto& [name, value] : graph_.borrowed_buffers)
    bound_.push_back({value, tensor_of(name, state), false});
}

GraphModule::~GraphModule() = default;

void GraphModule::bind(const std::map<std::string, ValueId>& names,
                       const std::map<std::string, at::Tensor>& state, bool parameters) {
  std::set<ValueId> seen;
  for (const auto& [name, value] : names) {
    const at::Tensor& tensor = tensor_of(name, state);
    const std::size_t dot = name.rfind('.');
    torch::nn::Module& owner = child(*this, dot == std::string::npos ? "" : name.substr(0, dot));
    const std::string own = dot == std::string::npos ? name : name.substr(dot + 1);
    if (parameters) {
      owner.register_parameter(own, tensor, tensor.requires_grad());
    } else {
      owner.register_buffer(own, tensor);
    }
    const auto update = graph_.updated_buffers.find(name);
    const bool is_updated = update != graph_.updated_buffers.end();
    if (is_updated) updates_.emplace_back(tensor, update->second);
    if (seen.insert(value).second) bound_.push_back({value, tensor, is_updated});
  }
}

std::vector<c10::IValue> GraphModule::make_slots(const Values& inputs) const {
  std::vector<c10::IValue> slots(graph_.values.size());
  for (const Bound& each : bound_) {
    // What is updated may have been saved for the backward as it was.
    slots[static_cast<std::size_t>(each.value)] = each.is_updated ? each.tensor.clone() : each.tensor;
  }
  for (const auto& [value, tensor] : graph_.constants) slots[static_cast<std::size_t>(value)] = tensor;
  std::size_t next = 0;
  for (const Graph::Port& port : graph_.inputs) {
    const auto* value = std::get_if<ValueId>(&port.is);
    if (!value) continue;
    if (next == inputs.size()) throw Error("there is no input '" + port.name + "'");
    slots[static_cast<std::size_t>(*value)] = inputs[next++];
  }
  if (next != inputs.size()) {
    throw Error("the model takes " + std::to_string(next) + " inputs, not " + std::to_string(inputs.size()));
  }
  return slots;
}

std::vector<double> GraphModule::time_forward(const Values& inputs) {
  std::vector<c10::IValue> slots = make_slots(inputs);
  return program_->time(slots);
}

Values GraphModule::forward(const Values& inputs) {
  std::vector<c10::IValue> slots = make_slots(inputs);
  program_->run(slots);
  Values outputs;
  for (const Graph::Port& port : graph_.outputs) {
    const auto* value = std::get_if<ValueId>(&port.is);
    if (!value) continue;
    const c10::IValue& output = slots[static_cast<std::size_t>(*value)];
    outputs.push_back(output.isTensor() ? output.toTensor() : c10::scalar_to_tensor(output.toScalar()));
  }
  const at::AutoGradMode no_grad(false);
  for (auto& [buffer, value] : updates_) buffer.copy_(slots[static_cast<std::size_t>(value)].toTensor());
  return outputs;
}

}  // namespace pipewright
