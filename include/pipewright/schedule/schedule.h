#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "pipewright/base/ids.h"
#include "pipewright/schedule/action.h"

namespace pipewright {

/// Which rank holds each stage: `placement[stage]` is its rank.
using Placement = std::vector<Rank>;

/// Stage s on rank s mod ranks: 0 1 2 3 | 0 1 2 3 | …
Placement loop_placement(Rank ranks, int stages_per_rank);
/// There and back again: 0 1 2 3 | 3 2 1 0 | …
Placement v_placement(Rank ranks, int stages_per_rank);

/// Stage `from` hands values to stage `to` directly, past the stages between.
struct Skip {
  Stage from;
  Stage to;
  friend auto operator<=>(const Skip&, const Skip&) = default;
};

/// An ordered list of actions for each rank, with the placement of the stages.
///
/// A plain value that may hold anything, also nonsense: `validate` judges it.
/// The functions of this layer never throw for what a list contains unless they
/// say so. Safe to share between threads as long as nobody writes.
struct Schedule {
  std::vector<std::vector<Action>> ranks;
  Placement placement;
  Microbatch microbatches = 0;
  /// What the model has beyond the way from each stage to the next: ascending, each once, from + 1 < to.
  /// Whoever knows the model sets them before lowering; a schedule as generated has none.
  std::vector<Skip> skips = {};

  Rank rank_count() const { return static_cast<Rank>(ranks.size()); }
  Stage stage_count() const { return static_cast<Stage>(placement.size()); }
  Stage last_stage() const { return stage_count() - 1; }
  std::size_t action_count() const;

  friend bool operator==(const Schedule&, const Schedule&) = default;
};

/// The same ranks, placement, microbatches and skips, with nothing to do yet.
Schedule with_empty_lists(const Schedule& schedule);

/// True if any action is not a compute action or a bubble: the compute_comms format.
bool is_lowered(const Schedule& schedule);

/// Fills `placement`, `microbatches` and `skips` from what the lists contain: a
/// stage belongs to the first rank that names it (rank −1 where none does), the
/// highest microbatch index is the last, and there is a skip where a message
/// takes one. Skips between stages of one rank have no messages and leave no trace.
void infer_placement(Schedule& schedule);

}  // namespace pipewright
