// ZB-H2: like ZB-H1, but with up to 2(p−r)−1 warm-up forwards on rank r, so that
// the whole drain is hidden too (Qi et al., 2024, arXiv:2401.10241). Two ranks:
//
//   rank 0  F0 F1 F2 I0 W0 F3 I1 W1 F4 I2 W2 …
//   rank 1  .  F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 …
//
// No bubble within a rank's span from m = 2p−1 on, for 2p−1 activations.

#include <algorithm>

#include "schedule/generate/generators.h"
#include "schedule/ir/bubbles.h"

namespace pipewright {

Schedule zb_h2(const Sizes& sizes) {
  const Microbatch m = sizes.microbatches;
  Schedule schedule = empty_schedule(sizes, loop_placement(sizes.ranks, 1));
  for (Rank rank = 0; rank < sizes.ranks; ++rank) {
    auto& actions = schedule.ranks[static_cast<std::size_t>(rank)];
    actions.reserve(3 * static_cast<std::size_t>(m));
    const Microbatch warmup = std::min(m, 2 * (sizes.ranks - rank) - 1);
    const Microbatch weight_lag = 2 * rank;
    const auto add = [&](Kind kind, Microbatch j) { actions.push_back(make_action(rank, kind, j)); };
    for (Microbatch j = 0; j < warmup; ++j) add(Kind::F, j);
    for (Microbatch j = 0; j < m; ++j) {
      add(Kind::I, j);
      if (j >= weight_lag) add(Kind::W, j - weight_lag);  // before F: it frees what F takes
      if (warmup + j < m) add(Kind::F, warmup + j);
    }
    for (Microbatch j = std::max(0, m - weight_lag); j < m; ++j) add(Kind::W, j);
  }
  insert_bubbles(schedule);
  return schedule;
}

}  // namespace pipewright
