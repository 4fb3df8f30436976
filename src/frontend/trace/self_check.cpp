#include "frontend/trace/self_check.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <optional>
#include <set>
#include <utility>

#include "frontend/graph/aliases.h"
#include "frontend/trace/same_bits.h"
#include "frontend/trace/saved_state.h"
#include "pipewright/base/error.h"
#include "pipewright/frontend/graph_module.h"

namespace pipewright {
namespace {

struct Outcome {
  Values outputs;
  Values gradients;  // of the inputs, then of the parameters; undefined where there is none
  Values buffers;
};

/// What is written to besides buffers, and the model's own generators.
void save_written(const Graph& graph, const ModelState& state, SavedState& saved) {
  std::set<ValueId> written;
  const Aliases aliases(graph);
  for (const Aliases::Written& each : aliases.written())
    written.insert(each.values.begin(), each.values.end());
  for (const auto& [name, tensor] : state.parameters) {
    if (written.contains(graph.parameters.at(name))) saved.before_write(tensor);
  }
  for (const auto& [value, tensor] : graph.constants) {
    saved.watch(tensor);
    if (written.contains(value)) saved.before_write(tensor);
  }
  for (const GraphNode& node : graph.nodes) {
    for (const Argument& argument : node.arguments) {
      const auto* constant = std::get_if<c10::IValue>(&argument.is);
      if (constant && constant->isGenerator()) saved.before_use(constant->toGenerator());
    }
  }
}

Outcome outcome_of(const std::function<Values(const Values&)>& forward, const ModelState& state,
                   const Graph& graph, const Sample& sample) {
  SavedState saved(state, sample.inputs);
  save_written(graph, state, saved);
  const at::AutoGradMode grad(true);
  Outcome outcome;
  Values inputs;
  Values sources;
  for (const at::Tensor& input : sample.inputs) {
    const at::Tensor leaf = input.defined() ? input.detach().clone() : input;
    if (leaf.defined() && (leaf.is_floating_point() || leaf.is_complex()))
      sources.push_back(leaf.requires_grad_(true));
    inputs.push_back(leaf.defined() ? leaf.clone() : leaf);
  }
  for (const auto& [name, tensor] : state.parameters) {
    if (tensor.requires_grad()) sources.push_back(tensor);
  }
  Values ends;
  Values ones;
  for (const at::Tensor& output : forward(inputs)) {
    if (!output.defined()) continue;  // the graph does not have it
    outcome.outputs.push_back(output.detach().clone());
    if (!output.requires_grad()) continue;
    ends.push_back(output);
    ones.push_back(at::ones_like(output));
  }
  if (!ends.empty() && !sources.empty()) {
    try {
      outcome.gradients = torch::autograd::grad(ends, sources, ones, /*retain_graph=*/std::nullopt,
                                                /*create_graph=*/false, /*allow_unused=*/true);
    } catch (const c10::Error&) {
      outcome.gradients.clear();  // a model for inference: then the graph must have none, either
    }
  }
  for (const auto& [name, buffer] : state.buffers) outcome.buffers.push_back(buffer.detach().clone());
  return outcome;
}

/// What a run gave is what was wanted: bit by bit, but where the model itself does not give the same bits
/// again.
bool agrees(const Values& wanted, const Values& got, const Values& again) {
  if (wanted.size() != got.size()) return false;
  for (std::size_t at = 0; at < wanted.size(); ++at) {
    const at::Tensor& a = wanted[at];
    const at::Tensor& b = got[at];
    if (has_same_bits(a, b)) continue;
    const bool is_exact = at >= again.size() || has_same_bits(a, again[at]);
    if (is_exact || !a.is_floating_point() || !b.defined() || a.sizes() != b.sizes() ||
        a.dtype() != b.dtype())
      return false;
    constexpr double kTolerance = 1e-3;
    if (!at::allclose(a, b, kTolerance, kTolerance, /*equal_nan=*/true)) return false;
  }
  return true;
}

}  // namespace

void check_against(const StageModel& model, const ModelState& state, const TracedModel& traced,
                   const Sample& sample) {
  GraphModule module(traced.graph, traced.state);
  Sample given = sample;
  std::erase_if(given.inputs, [](const at::Tensor& input) { return !input.defined(); });
  const Outcome wanted = outcome_of(model.forward, state, traced.graph, sample);
  const Outcome got =
      outcome_of([&](const Values& inputs) { return module.forward(inputs); }, state, traced.graph, given);
  std::optional<Outcome> again;
  for (const auto& [what, values] : {std::pair("outputs", &Outcome::outputs),
                                     {"gradients", &Outcome::gradients},
                                     {"buffers", &Outcome::buffers}}) {
    if (agrees(wanted.*values, got.*values, {})) continue;
    if (!again) again = outcome_of(model.forward, state, traced.graph, sample);
    if (agrees(wanted.*values, got.*values, (*again).*values)) continue;
    throw Error(std::string("the graph's ") + what + " differ from the model's (with " + sample.text() +
                "): the forward does something that is no operator, such as writing through data_ptr or an "
                "accessor, or depends on what it did before");
  }
}

}  // namespace pipewright
