#include "runtime/backward/stage_graph.h"

#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <type_traits>

#include "pipewright/base/error.h"

namespace pipewright {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

/// Where a stage's graph ends. Backward passes stop here and take the gradients.
struct StageInputs : Node {
  variable_list apply(variable_list&& /*grads*/) override {
    throw Error("a stage's inputs belong to its pipeline: call backward only through the pipeline");
  }
};

template <typename Pointer>
Pointer make_stage_inputs() {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<Node>>) {
    return std::make_shared<StageInputs>();
  } else {
    return c10::make_intrusive<StageInputs>();
  }
}

}  // namespace

Values StageGraph::enter(Values inputs) {
  input_count_ = inputs.size();
  for (std::size_t slot = 0; slot < inputs.size(); ++slot) {
    const at::Tensor& input = inputs[slot];
    if (!input.defined() || !input.requires_grad()) continue;
    if (!inputs_) inputs_ = make_stage_inputs<NodePtr>();
    input.unsafeGetTensorImpl()->set_requires_grad(false);  // from now on because of its edge
    const std::uint32_t position = inputs_->add_input_metadata(input);
    torch::autograd::impl::set_gradient_edge(input, Edge(inputs_, position));
    input_slots_.push_back(slot);
  }
  return inputs;
}

void StageGraph::leave(const Values& outputs) {
  output_count_ = outputs.size();
  for (std::size_t slot = 0; slot < outputs.size(); ++slot) {
    if (!outputs[slot].defined() || !outputs[slot].requires_grad()) continue;
    roots_.push_back(torch::autograd::impl::gradient_edge(outputs[slot]));
    root_slots_.push_back(slot);
  }
}

}  // namespace pipewright
