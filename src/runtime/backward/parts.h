#pragma once

#include <torch/csrc/autograd/function.h>

namespace pipewright {

// Gradients of operators that pick a part of a tensor: several parts have room in one whole.

/// Its result is one place along a dimension of its input, or a range of them.
bool picks_a_part(const torch::autograd::Node& node);
/// The same part of another tensor of the input's sizes, as a view. REQUIRES: the operator picks one.
at::Tensor part_of(const at::Tensor& whole, const torch::autograd::Node& node);
/// Zeros of the input's sizes which, where the input was permuted, lie in memory as they did before that: its
/// gradient need not be copied on its way back. REQUIRES: the operator picks a part of its input.
at::Tensor zeros_around(const at::Tensor& part, const torch::autograd::Node& node);

}  // namespace pipewright
