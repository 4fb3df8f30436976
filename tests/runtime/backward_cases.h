#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/models.h"

namespace pipewright {

/// A layer whose backward is to be split, as a graph of some shape.
struct BackwardCase {
  std::string name;
  LayerFactory layer;
  /// What it takes for one microbatch.
  std::function<Values(Microbatch)> inputs;
  /// Changes its inputs in place: not fit to be first, where they are the user's.
  bool changes_inputs = false;
};

std::vector<BackwardCase> backward_cases();

/// A layer that scales and shifts every floating-point value it gets, element by
/// element: its gradients are those of its outputs.
LayerFactory probe(const Values& example);

/// The case alone, behind a probe, or between two.
Model case_model(const BackwardCase& each, bool probe_before, bool probe_after);

/// Gives the product of its two arguments. Counts how often each gradient was asked for.
struct CountingProduct : torch::autograd::Function<CountingProduct> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight);
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads);
  static std::atomic<int> input_gradients;
  static std::atomic<int> weight_gradients;
};
/// A layer around it.
LayerFactory counting_product();

}  // namespace pipewright
