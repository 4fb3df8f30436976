// Interleaved zero bubble: interleaved 1F1B with the backward split, and rank
// r's W running r passes behind its I, so that W fills the drain (Qi et al.,
// 2024, arXiv:2401.10241, there called ZB-1p). Three ranks, one stage each:
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
  Schedule schedule = one_forward_one_backward_in_rounds(sizes, 1, true);
  // The cells of the common format: steps aligned on the forwards alone.
  insert_bubbles(schedule, Replay::Dependencies::ForwardsOnly);
  return schedule;
}

}  // namespace pipewright
