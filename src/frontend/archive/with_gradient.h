#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "pipewright/base/error.h"

namespace pipewright {

/// The tensor, set to have a gradient or none as a file says; one of integers cannot have any.
inline at::Tensor with_gradient(const at::Tensor& tensor, bool wanted, const std::string& name) {
  if (wanted && !tensor.is_floating_point() && !tensor.is_complex())
    throw ParseError("the tensor '" + name + "' cannot have a gradient: it holds integers");
  return tensor.set_requires_grad(wanted);
}

}  // namespace pipewright
