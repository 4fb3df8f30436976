#pragma once

#include "schedule/generate/generators.h"

namespace pipewright {

/// The 1F1B family: warm-up forwards, then one forward and one backward in
/// turn, then the backwards that are left. With several stages a rank, the
/// microbatches pass in rounds: `per_round` of them on one stage, then the same
/// ones on the rank's next stage; backwards likewise from the last stage.
struct OneForwardOneBackward {
  /// Forwards that a rank runs ahead for each hop to the last rank.
  int warmup_per_hop;
  /// Microbatches in a round. REQUIRES: divides the number of microbatches.
  Microbatch per_round;
  /// I and W instead of B, W of rank r running r backwards behind its I.
  bool split_backward;
};

/// The compute order, with the bubbles of warm-up and drain.
Schedule one_forward_one_backward(const Sizes& sizes, const OneForwardOneBackward& rule);

/// The same in max(1, m / p) rounds, for any number of microbatches m: where the
/// rounds do not come out even, from the next m for which they do.
Schedule one_forward_one_backward_in_rounds(const Sizes& sizes, int warmup_per_hop, bool split_backward);

}  // namespace pipewright
