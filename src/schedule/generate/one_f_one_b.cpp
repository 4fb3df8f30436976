// 1F1B: a backward as soon as its gradient is there (Narayanan et al., 2019,
// PipeDream; 2021, arXiv:2104.04473). Three ranks:
//
//   rank 0  F0 F1 F2 .  .  B0 F3 B1 .  B2 .  B3
//   rank 1  .  F0 F1 .  B0 F2 B1 F3 B2 .  B3
//   rank 2  .  .  F0 B0 F1 B1 F2 B2 F3 B3
//
// Bubble (p−1)(F+B) like GPipe, but rank r holds only p−r activations.

#include "schedule/generate/interleaved.h"
#include "schedule/ir/bubbles.h"

namespace pipewright {

Schedule one_f_one_b(const Sizes& sizes) {
  Schedule schedule = one_forward_one_backward(
      sizes, {.warmup_per_hop = 1, .per_round = sizes.microbatches, .split_backward = false});
  schedule = without_bubbles(schedule);
  insert_bubbles(schedule);
  return schedule;
}

}  // namespace pipewright
