#include "runtime/backward/parts.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/strides.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <algorithm>
#include <numeric>
#include <typeinfo>
#include <utility>

namespace pipewright {
namespace {

using torch::autograd::Node;
using torch::autograd::generated::PermuteBackward0;
using torch::autograd::generated::SelectBackward0;
using torch::autograd::generated::SliceBackward0;

/// Counted from the start also where it is counted from the end.
std::int64_t from_start(std::int64_t position, std::int64_t size) {
  return position < 0 ? position + size : position;
}

c10::IntArrayRef sizes_of_input(const Node& node) {
  return C10_AS_INTARRAYREF_SLOW(typeid(node) == typeid(SelectBackward0)
                                     ? static_cast<const SelectBackward0&>(node).self_sym_sizes
                                     : static_cast<const SliceBackward0&>(node).self_sym_sizes);
}

/// Where what was picked begins, and with which steps it goes on.
struct Picked {
  std::int64_t dim;
  std::int64_t begin;
  std::int64_t step;
};

Picked picked_by(const Node& node) {
  const c10::IntArrayRef sizes = sizes_of_input(node);
  const auto dimensions = static_cast<std::int64_t>(sizes.size());
  if (typeid(node) == typeid(SelectBackward0)) {
    const auto& select = static_cast<const SelectBackward0&>(node);
    const std::int64_t dim = from_start(select.dim, dimensions);
    return {.dim = dim,
            .begin = from_start(select.index.expect_int(), sizes[static_cast<std::size_t>(dim)]),
            .step = 1};
  }
  const auto& slice = static_cast<const SliceBackward0&>(node);
  const std::int64_t dim = from_start(slice.dim, dimensions);
  const std::int64_t size = sizes[static_cast<std::size_t>(dim)];
  const std::int64_t start = slice.start ? slice.start->expect_int() : 0;
  return {.dim = dim,
          .begin = std::clamp<std::int64_t>(from_start(start, size), 0, size),
          .step = slice.step.expect_int()};
}

/// For each dimension of an operator's result, which one of its input that was.
std::vector<std::int64_t> order_behind(const Node& node, std::size_t dimensions) {
  std::vector<std::int64_t> order(dimensions);
  std::iota(order.begin(), order.end(), 0);
  if (typeid(node) != typeid(PermuteBackward0)) return order;
  order = static_cast<const PermuteBackward0&>(node).dims;
  for (std::int64_t& dim : order) dim = from_start(dim, static_cast<std::int64_t>(dimensions));
  return order;
}

/// The dimensions of `tensor` as they were before `order` was given to them.
at::Tensor unpermuted(const at::Tensor& tensor, const std::vector<std::int64_t>& order) {
  std::vector<std::int64_t> back(order.size());
  for (std::size_t at = 0; at < order.size(); ++at) {
    back[static_cast<std::size_t>(order[at])] = static_cast<std::int64_t>(at);
  }
  return tensor.permute(back);
}

/// As a matrix whose rows hold all from dimension `dim` on. REQUIRES: it is contiguous.
at::Tensor in_rows(const at::Tensor& tensor, std::int64_t dim) {
  const c10::IntArrayRef sizes = tensor.sizes();
  return tensor.view(
      {c10::size_to_dim_(static_cast<int>(dim), sizes), c10::size_from_dim_(static_cast<int>(dim), sizes)});
}

}  // namespace

bool picks_a_part(const Node& node) {
  return typeid(node) == typeid(SelectBackward0) || typeid(node) == typeid(SliceBackward0);
}

at::Tensor part_of(const at::Tensor& whole, const Node& node) {
  if (typeid(node) == typeid(SelectBackward0)) {
    const auto& picked = static_cast<const SelectBackward0&>(node);
    return whole.select_symint(picked.dim, picked.index);
  }
  const auto& picked = static_cast<const SliceBackward0&>(node);
  return whole.slice_symint(picked.dim, picked.start, picked.end, picked.step);
}

bool Parts::add(const Node& node, const at::Tensor& grad) {
  const Picked picked = picked_by(node);
  const bool has_dim = typeid(node) != typeid(SelectBackward0);
  Part part{.begin = picked.begin, .step = picked.step, .grad = has_dim ? grad : grad.unsqueeze(picked.dim)};
  if (parts_.empty()) {
    sizes_ = sizes_of_input(node).vec();
    order_ = order_behind(*node.next_edge(0).function, sizes_.size());
    dim_ = picked.dim;
  } else if (picked.dim != dim_ || std::ranges::any_of(parts_, [&](const Part& each) {
               return each.step != 1 || part.step != 1 ||
                      (each.begin < end_of(part) && part.begin < end_of(each));
             })) {
    return false;
  }
  parts_.push_back(std::move(part));
  return true;
}

bool Parts::complete() const {
  std::int64_t length = 0;
  for (const Part& part : parts_) length += part.grad.size(dim_);
  return length == sizes_.at(static_cast<std::size_t>(dim_));
}

at::Tensor Parts::join() {
  const bool whole_is_there = complete();
  std::vector<Part> parts = std::exchange(parts_, {});
  if (whole_is_there && parts.size() == 1) return std::move(parts.front().grad);
  at::Tensor whole = make_whole(parts.front().grad.options());
  if (!whole_is_there) {
    whole.zero_();
  } else if (join_rows(parts, whole)) {
    return whole;
  }
  for (const Part& part : parts) whole.slice(dim_, part.begin, end_of(part), part.step).copy_(part.grad);
  return whole;
}

std::int64_t Parts::end_of(const Part& part) const { return part.begin + part.grad.size(dim_) * part.step; }

at::Tensor Parts::make_whole(const at::TensorOptions& options) const {
  std::vector<std::int64_t> before(order_.size());
  for (std::size_t at = 0; at < order_.size(); ++at)
    before[static_cast<std::size_t>(order_[at])] = sizes_[at];
  const c10::DimVector dense = c10::contiguous_strides(before);
  std::vector<std::int64_t> strides(order_.size());
  for (std::size_t at = 0; at < order_.size(); ++at)
    strides[at] = dense[static_cast<std::size_t>(order_[at])];
  return at::empty_strided(sizes_, strides, options);
}

bool Parts::join_rows(std::vector<Part>& parts, const at::Tensor& whole) const {
  const std::int64_t cut = order_[static_cast<std::size_t>(dim_)];
  std::ranges::sort(parts, {}, &Part::begin);
  std::vector<at::Tensor> rows;
  rows.reserve(parts.size());
  for (const Part& part : parts) {
    const at::Tensor grad = unpermuted(part.grad, order_);
    if (!grad.is_contiguous() || grad.dtype() != whole.dtype()) return false;
    rows.push_back(in_rows(grad, cut));
  }
  at::Tensor target = in_rows(unpermuted(whole, order_), cut);
  at::cat_out(target, rows, 1);
  return true;
}

}  // namespace pipewright
