// ZB-H1: 1F1B with the backward split and W filling the drain, at 1F1B's
// memory (Qi et al., 2024, arXiv:2401.10241). Three ranks:
//
//   rank 0  F0 F1 F2 .  .  I0 W0 F3 I1 W1 I2 W2 I3 W3
//   rank 1  .  F0 F1 .  I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
//   rank 2  .  .  F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
//
// Bubble (p−1)(F+I−W); every rank holds p activations.

#include "schedule/generate/interleaved.h"
#include "schedule/ir/bubbles.h"

namespace pipewright {

Schedule zb_h1(const Sizes& sizes) {
  Schedule schedule = one_forward_one_backward(
      sizes, {.warmup_per_hop = 1, .per_round = sizes.microbatches, .split_backward = true});
  schedule = without_bubbles(schedule);
  insert_bubbles(schedule);
  return schedule;
}

}  // namespace pipewright
