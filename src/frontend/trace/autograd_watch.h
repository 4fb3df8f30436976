#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <map>

#include "pipewright/runtime/values.h"

namespace pipewright {

/// Notices what changes gradients and is no operator: custom autograd functions, hooks, leaves made on the
/// way. Throws Error that names it.
class AutogradWatch {
 public:
  /// A tensor as an operator is about to take it; what made it is the model's, not an operator's.
  void check(const at::Tensor& tensor);
  /// A tensor as an operator gave it: whatever computes its gradient belongs to the operator.
  void trust(const at::Tensor& tensor);
  /// Looks for hooks in all that was seen.
  void check_hooks() const;

 private:
  using Node = torch::autograd::Node;
  using NodePtr = decltype(torch::autograd::Edge::function);
  template <typename Visit>
  void walk(const at::Tensor& from, Visit visit);

  std::map<const Node*, NodePtr> seen_;  // held, so that no other gets its address
};

}  // namespace pipewright
