#include "runtime/backward/own_weight_gradient.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "pipewright/base/error.h"
#include "pipewright/runtime/boundary.h"

namespace pipewright {

void run_own_weight_gradient(const StageModel& model, const WeightGradient& gradient) {
  if (!model.module) throw Error("dw_builder needs a module whose parameters the gradients belong to");
  const std::vector<at::Tensor> parameters = model.module->parameters();
  const Values grads = gradient();
  if (grads.size() != parameters.size()) {
    throw Error("the weight gradient function returned " + std::to_string(grads.size()) + " gradients for " +
                std::to_string(parameters.size()) + " parameters");
  }
  for (std::size_t at = 0; at < grads.size(); ++at) {
    if (grads[at].defined() && grads[at].sizes() != parameters[at].sizes()) {
      throw Error("the weight gradient of parameter " + std::to_string(at) + " is " + to_text(grads[at]) +
                  ", the parameter " + to_text(parameters[at]));
    }
  }
  const at::AutoGradMode no_grad(false);
  for (std::size_t at = 0; at < grads.size(); ++at) {
    if (!grads[at].defined()) continue;
    at::Tensor& sum = parameters[at].mutable_grad();
    sum = sum.defined() ? sum + grads[at] : grads[at].detach();
  }
}

}  // namespace pipewright
