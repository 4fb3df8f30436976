#pragma once

#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <mutex>
#include <vector>

namespace pipewright {

/// Adds to the gradients that parameters have, with fewer operators and less memory than AccumulateGrad: a
/// product that is a weight's gradient, or a bias's, is computed straight into the sum, and small ones are
/// added all at once. Everything else is left to AccumulateGrad: where there is no sum yet, or a hook looks
/// on.
class GradientSums {
 public:
  /// Adds those gradients of an operator that are products and end in a parameter; the edges to these.
  /// `grads`: of the operator's outputs.
  std::vector<std::size_t> add_products(torch::autograd::Node& node,
                                        const torch::autograd::variable_list& grads);

  /// Before an operator runs: whether it would only add a small gradient, which `finish` does then.
  bool takes(torch::autograd::Node& node, const torch::autograd::variable_list& grads);
  void finish();

  /// For AccumulateGrad itself: held while it adds, as others may add to the same gradient.
  static std::unique_lock<std::mutex> lock(torch::autograd::Node& node);

 private:
  /// Adds the sum of a matrix's rows to a bias; false where there is none at the edge's end.
  bool add_rows(torch::autograd::Node& node, std::size_t edge, const at::Tensor& grad,
                const at::Scalar& scale);

  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> grads_;
  at::Tensor ones_;  // for sums of rows, which are products with it
};

}  // namespace pipewright
