#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "pipewright/runtime/world.h"

namespace pipewright {

/// The p-norm of all tensors as one vector, p from 1 to infinity; 0 for none.
at::Tensor norm_of(const std::vector<at::Tensor>& tensors, double p);

/// The same over the tensors of all processes, from each one's own norm. All call it at the same point.
at::Tensor norm_over(World& world, const at::Tensor& own, double p);

/// Scales `grads` in place by max_norm / norm where that is less than 1.
void scale_to_norm(const std::vector<at::Tensor>& grads, const at::Tensor& norm, double max_norm);

}  // namespace pipewright
