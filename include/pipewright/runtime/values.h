#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace pipewright {

/// What crosses a boundary: the inputs or outputs of a stage, by position. An
/// undefined tensor is a value that is absent (an optional one not given, a
/// gradient that is missing).
using Values = std::vector<at::Tensor>;

}  // namespace pipewright
