#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <vector>

namespace pipewright {

// Gradients of operators that pick a part of a tensor: several parts have room in one whole.

/// Its result is one place along a dimension of its input, or a range of them.
bool picks_a_part(const torch::autograd::Node& node);
/// The same part of another tensor of the input's sizes, as a view. REQUIRES: the operator picks one.
at::Tensor part_of(const at::Tensor& whole, const torch::autograd::Node& node);

/// The gradients of parts of one tensor that have arrived so far.
class Parts {
 public:
  /// Keeps the gradient of what an operator has picked; false where it may overlap with one that is there:
  /// then it is not kept. REQUIRES: the operator picks a part of its input.
  bool add(const torch::autograd::Node& node, const at::Tensor& grad);
  bool empty() const { return parts_.empty(); }
  /// Whether nothing of the whole is missing.
  bool complete() const;
  /// Leaves nothing; the whole's gradient: with zeros where no part is. Where the whole was permuted, it lies
  /// in memory as before that, and need not be copied on its way back. REQUIRES: not empty.
  at::Tensor join();

 private:
  /// Positions along the dimension that is cut; `grad` has that dimension.
  struct Part {
    std::int64_t begin;
    std::int64_t step;
    at::Tensor grad;
  };

  std::int64_t end_of(const Part& part) const;
  /// With room for all of them, laid out as it is to be.
  at::Tensor make_whole(const at::TensorOptions& options) const;
  /// Puts them one behind the other, in rows of memory, by one operator; false where they do not lie like
  /// that. REQUIRES: none is missing.
  bool join_rows(std::vector<Part>& parts, const at::Tensor& whole) const;

  std::vector<std::int64_t> sizes_;  // of the whole
  std::vector<std::int64_t> order_;  // dimension `i` was `order_[i]` before the whole was permuted
  std::int64_t dim_ = 0;
  std::vector<Part> parts_;
};

}  // namespace pipewright
