#pragma once

#include <torch/csrc/autograd/function.h>

namespace pipewright {

/// Computes only those gradients whose edges are there, each at the cost of one:
/// its input gradient and its weight gradient can be computed at different times.
bool computes_gradients_apart(const torch::autograd::Node& node);

/// Only looks at its input in another way, or converts it, or is where a
/// parameter's gradient ends: nothing worth running early.
bool is_cheap(const torch::autograd::Node& node);

/// Somebody wants to see, or to change, the gradients that it gets or gives.
bool has_hooks(torch::autograd::Node& node);

}  // namespace pipewright
