#pragma once

#include <functional>
#include <vector>

#include "pipewright/runtime/microbatch.h"
#include "pipewright/runtime/pipeline.h"
#include "runtime/executor/failure.h"
#include "runtime/transport/channel.h"

namespace pipewright {

/// What the ranks share while they run one step. Each element of the lists is
/// written by one rank and read after all have ended.
struct Step {
  bool train = false;
  /// Whether the last stage computes losses.
  bool with_loss = false;
  bool trace = false;
  double grad_scale = 1;
  std::int64_t number = 0;
  std::vector<MicrobatchValues> microbatches;
  /// Called with the last stage's outputs as they come, if at all.
  Pipeline::OutputHandler on_output;
  Clock::time_point start;

  std::vector<at::Tensor> losses;
};

}  // namespace pipewright
