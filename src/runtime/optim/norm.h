#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace pipewright {

/// The p-norm of all tensors as one vector, p from 1 to infinity; 0 for none.
at::Tensor norm_of(const std::vector<at::Tensor>& tensors, double p);

/// Scales `grads` in place by max_norm / norm where that is less than 1.
void scale_to_norm(const std::vector<at::Tensor>& grads, const at::Tensor& norm, double max_norm);

}  // namespace pipewright
