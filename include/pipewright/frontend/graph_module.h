#pragma once

#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/frontend/graph.h"
#include "pipewright/runtime/values.h"

namespace pipewright {

class GraphProgram;

/// Runs a graph, under autograd like any other module. Its parameters and buffers have the names that they
/// have in the whole model, with the modules that these name as children.
class GraphModule : public torch::nn::Module {
 public:
  /// `state`: the tensors of all parameters and buffers of the graph, by name; those with several names are
  /// one tensor under each. Throws Error for a graph that cannot be run, and lists all operators that are not
  /// known.
  GraphModule(Graph graph, const std::map<std::string, at::Tensor>& state);
  ~GraphModule() override;

  /// The inputs that are values, in their order; the outputs likewise. A value that is no tensor is one here.
  Values forward(const Values& inputs);

  /// A forward whose outputs nobody needs: the seconds of each node.
  std::vector<double> time_forward(const Values& inputs);

  const Graph& graph() const { return graph_; }

 private:
  struct Bound {
    ValueId value;
    at::Tensor tensor;
    bool is_updated;
  };

  void bind(const std::map<std::string, ValueId>& names, const std::map<std::string, at::Tensor>& state,
            bool parameters);

  /// By value, what a run begins with.
  std::vector<c10::IValue> make_slots(const Values& inputs) const;

  Graph graph_;
  std::unique_ptr<GraphProgram> program_;
  std::vector<Bound> bound_;
  std::vector<std::pair<at::Tensor, ValueId>> updates_;
};

}  // namespace pipewright
