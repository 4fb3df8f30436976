#pragma once

#include "pipewright/schedule/schedule.h"

namespace pipewright {

/// Sizes that a generator may rely on: all at least 1, and within what its row
/// of the table in `registry.cpp` allows.
struct Sizes {
  Rank ranks;
  Microbatch microbatches;
  int stages_per_rank;

  Stage stages() const { return ranks * stages_per_rank; }
};

// One file each. All return compute-only schedules whose columns are time steps
// where that can be said in cells.
Schedule gpipe(const Sizes& sizes);
Schedule one_f_one_b(const Sizes& sizes);
Schedule interleaved_1f1b(const Sizes& sizes);
Schedule looped_bfs(const Sizes& sizes);
Schedule interleaved_zero_bubble(const Sizes& sizes);
Schedule zb_h1(const Sizes& sizes);
Schedule zb_h2(const Sizes& sizes);
Schedule zbv_zero_bubble(const Sizes& sizes);
Schedule v_half(const Sizes& sizes);
Schedule v_min(const Sizes& sizes);
Schedule dual_pipe_v(const Sizes& sizes);
Schedule forward_only(const Sizes& sizes, Placement placement);

/// An empty list for every rank.
Schedule empty_schedule(const Sizes& sizes, Placement placement);

/// Drops what belongs to microbatches from `microbatches` on. What is left runs
/// no longer than before: an action can only start earlier when others vanish.
/// An OVERLAP_F_B that loses a part becomes the other part alone.
void keep_microbatches(Schedule& schedule, Microbatch microbatches);

}  // namespace pipewright
