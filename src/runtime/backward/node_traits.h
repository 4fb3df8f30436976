#pragma once

#include <torch/csrc/autograd/function.h>

namespace pipewright {

/// Computes only those gradients whose edges are there, each at the cost of one:
/// its input gradient and its weight gradient can be computed at different times.
bool computes_gradients_apart(const torch::autograd::Node& node);

/// Only looks at its input in another way, or converts it, or is where a
/// parameter's gradient ends: nothing worth running early.
bool is_cheap(const torch::autograd::Node& node);

/// Its result is one place along a dimension of its input, or a range of them.
bool picks_a_part(const torch::autograd::Node& node);
/// The same part of another tensor of the input's sizes, as a view. REQUIRES: the operator picks one.
at::Tensor part_of(const at::Tensor& whole, const torch::autograd::Node& node);
/// Zeros of the input's sizes which, where the input was permuted, lie in memory as they did before that: its
/// gradient need not be copied on its way back. REQUIRES: the operator picks a part of its input.
at::Tensor zeros_around(const at::Tensor& part, const torch::autograd::Node& node);

}  // namespace pipewright
