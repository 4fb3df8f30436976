// Interleaved zero bubble: interleaved 1F1B with the backward split, and rank
// r's W running r passes behind its I, so that W fills the drain (Qi et al.,
// 2023, arXiv:2401.10241, there called ZB-1p). Three ranks, one stage each:
//
//   rank 0  F0 F1 .  .  F2 I0 W0 F3 I1 W1 I2 W2 I3 W3
//   rank 1  .  F0 .  F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
//   rank 2  .  .  F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
//
// Bubble (p−1)(F+I−W)/v; every rank holds p activations.

#include "schedule/generate/interleaved.h"
#include "schedule/ir/bubbles.h"

namespace pipewright {

Schedule interleaved_zero_bubble(const Sizes& sizes) {
  const auto [microbatches, per_round] = even_rounds(sizes.ranks, sizes.microbatches);
  Sizes even = sizes;
  even.microbatches = microbatches;
  Schedule schedule =
      one_forward_one_backward(even, {.warmup_per_hop = 1, .per_round = per_round, .split_backward = true});
  if (microbatches == sizes.microbatches) {
    // The cells of the common format: steps aligned on the forwards alone.
    insert_bubbles(schedule, Replay::Dependencies::ForwardsOnly);
  } else {
    schedule = without_bubbles(schedule);
    keep_microbatches(schedule, sizes.microbatches);
    insert_bubbles(schedule);
  }
  return schedule;
}

}  // namespace pipewright
