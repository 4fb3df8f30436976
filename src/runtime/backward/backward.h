#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include "pipewright/runtime/values.h"
#include "runtime/backward/stage_graph.h"

namespace pipewright {

/// What an I leaves for its W: the operators whose weight gradients are still to
/// be computed, with the gradients of their outputs, and gradients that are on
/// their way to the parameters.
struct WeightWork {
  torch::autograd::edge_list roots;
  torch::autograd::variable_list grads;
  /// It is more than gradients on their way: some operator is still to run.
  bool separated = false;
};

// `grads` has a value for each of the stage's output slots; undefined where there
// is none. A graph is used up by one backward. All run on the calling thread.
// The autograd engine is not used: it would cost more than a small operator on every call, and it can
// neither leave out the part of a graph that another pass has done nor free what that part has kept.

/// Gradients of the inputs, by slot; those of the parameters are accumulated.
Values run_full_backward(const StageGraph& graph, const Values& grads);

/// Gradients of the inputs alone. Every operator that is needed for them runs
/// once; what it kept for the backward is freed unless its W needs it.
Values run_input_backward(const StageGraph& graph, const Values& grads, WeightWork& weight_work);

/// The rest: accumulates the parameters' gradients.
void run_weight_backward(WeightWork work);

}  // namespace pipewright
