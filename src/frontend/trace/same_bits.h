#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>

namespace pipewright {

/// Whether two tensors have the same type, sizes and contents; NaN is the same as NaN.
inline bool has_same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes() || a.device() != b.device()) return false;
  const auto bytes = [](const at::Tensor& tensor) {
    return tensor.detach().contiguous().view({-1}).view(at::kByte);
  };
  return a.numel() == 0 || at::equal(bytes(a), bytes(b));
}

}  // namespace pipewright
