#pragma once

#include <torch/torch.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "pipewright/frontend/trace.h"
#include "pipewright/runtime/stage_model.h"

namespace pipewright {

/// A model that is traced; what it does is what counts, not what for.
struct TracedCase {
  std::string name;
  /// The same parameters each time, for the same seed.
  std::function<StageModel()> make;
  std::function<Values(std::int64_t batch)> inputs;
  TraceOptions options = {};
  /// Not every node can be cut at: some would part values that share memory which is written to.
  bool writes_in_place = false;
  /// Cut anywhere, several stages use one parameter, or several times one value: gradients are sums in
  /// another order.
  bool sums_in_another_order = false;
  double tolerance = 1e-5;  ///< Of that sum.
};

const std::vector<TracedCase>& traced_cases();
const TracedCase& case_named(const std::string& name);

/// The model, always the same, on one thread.
StageModel made(const TracedCase& from);

/// The state of a stage: copies of its own, as in a process of its own.
std::map<std::string, at::Tensor> copied(const Graph& part, const std::map<std::string, at::Tensor>& state);

}  // namespace pipewright
