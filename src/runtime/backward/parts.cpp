#include "runtime/backward/parts.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/util/strides.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <cstdint>
#include <typeinfo>
#include <vector>

namespace pipewright {

using torch::autograd::generated::PermuteBackward0;
using torch::autograd::generated::SelectBackward0;
using torch::autograd::generated::SliceBackward0;

bool picks_a_part(const torch::autograd::Node& node) {
  return typeid(node) == typeid(SelectBackward0) || typeid(node) == typeid(SliceBackward0);
}

at::Tensor part_of(const at::Tensor& whole, const torch::autograd::Node& node) {
  if (typeid(node) == typeid(SelectBackward0)) {
    const auto& picked = static_cast<const SelectBackward0&>(node);
    return whole.select_symint(picked.dim, picked.index);
  }
  const auto& picked = static_cast<const SliceBackward0&>(node);
  return whole.slice_symint(picked.dim, picked.start, picked.end, picked.step);
}

at::Tensor zeros_around(const at::Tensor& part, const torch::autograd::Node& node) {
  const c10::SymIntArrayRef symbolic = typeid(node) == typeid(SelectBackward0)
                                           ? static_cast<const SelectBackward0&>(node).self_sym_sizes
                                           : static_cast<const SliceBackward0&>(node).self_sym_sizes;
  const c10::IntArrayRef sizes = C10_AS_INTARRAYREF_SLOW(symbolic);
  const torch::autograd::Node& from = *node.next_edge(0).function;
  if (typeid(from) != typeid(PermuteBackward0)) return at::zeros(sizes, part.options());
  // Dimension `i` of the input was `dims[i]`, also where that counts from the end.
  std::vector<std::int64_t> dims = static_cast<const PermuteBackward0&>(from).dims;
  const auto rank = static_cast<std::int64_t>(dims.size());
  for (std::int64_t& dim : dims) dim = (dim + rank) % rank;
  std::vector<std::int64_t> before(dims.size());
  for (std::size_t at = 0; at < dims.size(); ++at) before[static_cast<std::size_t>(dims[at])] = sizes[at];
  const c10::DimVector dense = c10::contiguous_strides(before);
  std::vector<std::int64_t> strides(dims.size());
  for (std::size_t at = 0; at < dims.size(); ++at) strides[at] = dense[static_cast<std::size_t>(dims[at])];
  return at::empty_strided(sizes, strides, part.options()).zero_();
}

}  // namespace pipewright
