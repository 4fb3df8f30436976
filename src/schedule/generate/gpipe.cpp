// GPipe: all forwards, then all backwards (Huang et al., 2018, arXiv:1811.06965).
//
//   rank 0  F0 F1 F2 F3 .  .  .  .  B0 B1 B2 B3
//   rank 1  .  F0 F1 F2 F3 .  .  B0 B1 B2 B3
//   rank 2  .  .  F0 F1 F2 F3 B0 B1 B2 B3
//
// Bubble (p−1)(F+B); every microbatch's activation is held at the peak.

#include "schedule/generate/generators.h"
#include "schedule/ir/bubbles.h"

namespace pipewright {

Schedule gpipe(const Sizes& sizes) {
  Schedule schedule = empty_schedule(sizes, loop_placement(sizes.ranks, 1));
  for (Rank rank = 0; rank < sizes.ranks; ++rank) {
    auto& actions = schedule.ranks[static_cast<std::size_t>(rank)];
    actions.reserve(2 * static_cast<std::size_t>(sizes.microbatches));
    for (Microbatch j = 0; j < sizes.microbatches; ++j) actions.push_back(make_action(rank, Kind::F, j));
    for (Microbatch j = 0; j < sizes.microbatches; ++j) actions.push_back(make_action(rank, Kind::B, j));
  }
  insert_bubbles(schedule);
  return schedule;
}

}  // namespace pipewright
