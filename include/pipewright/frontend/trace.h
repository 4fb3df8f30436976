#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/frontend/graph.h"
#include "pipewright/runtime/stage_model.h"
#include "pipewright/runtime/values.h"

namespace pipewright {

struct ProgramDescription;

struct TraceOptions {
  /// False: sizes are those of the sample, for ever. True: the graph is for batches of any size. The model is
  /// called with other sizes, too, and what changes with them must be a size of a tensor, or a·B+b.
  bool dynamic_batch = true;
  /// The dimension of each input that is the batch. Not given: the first, of those inputs that have the size
  /// of the first input there.
  std::optional<std::vector<std::optional<int>>> batch_dims = {};
};

struct TracedModel {
  /// Names of modules are those that own the parameters that a node uses; a node that uses none is counted to
  /// the one before it.
  Graph graph;
  /// Parameters and buffers, by name: the module's own tensors, for GraphModule.
  std::map<std::string, at::Tensor> state;
  /// Tensors that are no parameters, buffers or inputs, and are now constants of the graph: a line each.
  std::vector<std::string> notes;
  /// What else is known of it: for write_model.
  std::shared_ptr<const ProgramDescription> description;
};

/// The operators that a model's forward calls, as a graph. Whether it trains or evaluates is fixed by it, and
/// so is every decision that the forward takes. An input or output that is absent in the sample is no value
/// of the graph.
///
/// The model is called several times, with the sample and with data made from it, on this thread. Its
/// parameters, its buffers and the random numbers are then as they were before, also where it throws; other
/// members that the forward changes are not. At last the graph is run beside the model, and outputs,
/// gradients and buffers are compared.
///
/// Throws Error that names the operator and the reason for what cannot be a graph: data that is read by the
/// program
/// (`item`), custom autograd functions and hooks, backward passes inside of the forward, decisions that
/// depend on the data, the batch or earlier calls, tensors that change from call to call without being
/// buffers. What only happens for data or sizes that no call had is not noticed.
TracedModel trace(const StageModel& model, const Values& sample, const TraceOptions& options = {});

}  // namespace pipewright
