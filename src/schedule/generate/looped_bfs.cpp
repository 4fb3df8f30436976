// LoopedBFS: GPipe over several stages a rank, breadth first (Lamy-Poirier,
// 2022, arXiv:2211.05953): all microbatches of a stage before the next stage,
// and back in the opposite order. Two ranks, two stages each:
//
//   rank 0  0F0 0F1 2F0 2F1 .   .   2B1 2B0 0B1 0B0
//   rank 1  .   1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0
//
// Bubble (p−1)(F+B)/v; every activation is held at the peak.

#include "schedule/generate/generators.h"

namespace pipewright {

Schedule looped_bfs(const Sizes& sizes) {
  const Rank p = sizes.ranks;
  const Microbatch m = sizes.microbatches;
  Schedule schedule = empty_schedule(sizes, loop_placement(p, sizes.stages_per_rank));
  for (Rank rank = 0; rank < p; ++rank) {
    auto& actions = schedule.ranks[static_cast<std::size_t>(rank)];
    const int lead = rank;
    const int wait_for_gradient = 2 * (p - 1 - rank);
    actions.reserve(static_cast<std::size_t>(lead + wait_for_gradient) +
                    2 * static_cast<std::size_t>(sizes.stages_per_rank) * static_cast<std::size_t>(m));
    actions.insert(actions.end(), static_cast<std::size_t>(lead), Action{});
    for (Stage stage = rank; stage < sizes.stages(); stage += p) {
      for (Microbatch j = 0; j < m; ++j) actions.push_back(make_action(stage, Kind::F, j));
    }
    actions.insert(actions.end(), static_cast<std::size_t>(wait_for_gradient), Action{});
    for (Stage stage = sizes.stages() - p + rank; stage >= 0; stage -= p) {
      for (Microbatch j = m - 1; j >= 0; --j) actions.push_back(make_action(stage, Kind::B, j));
    }
  }
  return schedule;
}

}  // namespace pipewright
