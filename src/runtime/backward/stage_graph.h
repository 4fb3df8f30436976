#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pipewright/runtime/values.h"

namespace pipewright {

/// A shared pointer or an intrusive one, by the version of libtorch.
using NodePtr = decltype(torch::autograd::Edge::function);

/// The autograd graph of one microbatch on one stage, from its outputs back to its
/// inputs. Inputs end in a node of our own, not in leaves: they are not kept alive
/// by the graph and may be changed in place, as in the unsplit model.
class StageGraph {
 public:
  /// Makes the inputs that require gradients the start of a graph.
  /// REQUIRES: they are detached tensors that nobody else holds.
  Values enter(Values inputs);

  /// Takes the outputs as the end of the graph; only the differentiable ones count.
  void leave(const Values& outputs);

  bool empty() const { return roots_.empty(); }
  /// All outputs, also those that are not differentiable.
  std::size_t output_count() const { return output_count_; }

 private:
  friend class BackwardPass;

  NodePtr inputs_;                        // null where no input requires a gradient
  std::vector<std::size_t> input_slots_;  // slot of each input of that node
  std::size_t input_count_ = 0;           // all slots
  torch::autograd::edge_list roots_;      // of the differentiable outputs
  std::vector<std::size_t> root_slots_;   // slot of each root
  std::size_t output_count_ = 0;          // all slots
};

}  // namespace pipewright
