#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "pipewright/base/ids.h"
#include "pipewright/runtime/values.h"

namespace pipewright {

/// How a value of the batch becomes one of each microbatch.
struct Chunk {
  bool replicated = false;
  std::int64_t dim = 0;

  static Chunk along(std::int64_t dim) { return {.replicated = false, .dim = dim}; }
  static Chunk replicate() { return {.replicated = true, .dim = 0}; }
};

/// How the microbatches' values of one output become one value again.
using Merge = std::function<at::Tensor(const std::vector<at::Tensor>&)>;
Merge merge_along(std::int64_t dim);
Merge merge_sum();
Merge merge_mean();

/// What one microbatch brings along.
struct MicrobatchValues {
  Values inputs;                         ///< Of the first stage.
  Values targets;                        ///< Of the loss, with whatever else it takes.
  std::map<Stage, Values> stage_inputs;  ///< Local to a stage: after what its boundary brings.
};

/// The data of a step: whole, to be split, or already in microbatches.
struct Batch {
  Values inputs;
  Values targets;
  std::map<Stage, Values> stage_inputs = {};
  /// Given instead of the others: as many as the schedule has.
  std::vector<MicrobatchValues> microbatches = {};
};

/// How to split a batch. Values without a chunk, all where a list is empty, are split along dimension 0.
struct SplitSpec {
  std::vector<Chunk> inputs = {};
  std::vector<Chunk> targets = {};
  std::map<Stage, std::vector<Chunk>> stage_inputs = {};
};

/// Splits a batch; sizes that do not divide evenly give the first microbatches one more.
/// Throws ArgumentError where a value is shorter than the number of microbatches,
/// has no such dimension, or the batch is pre-split into another number.
std::vector<MicrobatchValues> split_batch(const Batch& batch, const SplitSpec& spec, Microbatch microbatches);

/// Merges each output over the microbatches; outputs without a merge are
/// concatenated along dimension 0, scalars stacked. An output absent everywhere stays absent.
Values merge_outputs(const std::vector<Values>& by_microbatch, const std::vector<Merge>& merges);

}  // namespace pipewright
