#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "pipewright/frontend/graph.h"
#include "pipewright/runtime/stage_model.h"

namespace pipewright {

/// A model's parameters and buffers.
struct ModelState {
  explicit ModelState(const torch::nn::Module* module);
  /// In the order in which modules register them; without those that are not there.
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  std::vector<std::pair<std::string, at::Tensor>> buffers;
};

/// What a model is called with.
struct Sample {
  Values inputs;
  std::int64_t batch = 0;  ///< 0: of a fixed size.
  bool is_other_data = false;
  std::string text() const;  ///< For messages: "a batch of 4".
};

/// What one call of a model did. Values have the same ids in every recording of a model that does the same.
struct Recording {
  /// All numbers are those of the call.
  Graph graph;
  struct Constant {
    at::Tensor tensor;
    at::Tensor contents;  ///< As they were at first.
    std::string user;     ///< The operator that was given it first.
  };
  std::map<ValueId, Constant> constants;
  /// Where tensors were, and how they lay there; of plain ones.
  struct Placement {
    std::vector<std::int64_t> strides;
    at::Device device;
  };
  std::map<ValueId, Placement> placements;
  Sample sample;
};

/// Calls the model. Throws Error for what cannot be recorded. Parameters, buffers and random numbers are
/// afterwards as they were.
Recording record(const StageModel& model, const ModelState& state, const Sample& sample);

}  // namespace pipewright
