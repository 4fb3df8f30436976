#pragma once

#include "pipewright/schedule/schedule.h"

namespace pipewright {

struct LowerOptions {
  /// Stages of a rank that may be unsharded at once: the one in use and the look-ahead.
  int max_active_stages = 3;
  /// Fuse an I with the W of the same stage and microbatch that follows it into one B.
  bool merge_backward = false;
  /// Place each receive as late as a plan free of deadlock allows, not as early as possible.
  bool defer_receives = false;
};

/// Turns a compute-only schedule into a plan: bubbles removed; UNSHARD, RESHARD,
/// REDUCE_GRAD, SEND and RECV placed. The schedule is validated before the first
/// and after every pass: throws InvalidSchedule that names the pass and what is wrong.
Schedule lower(Schedule schedule, const LowerOptions& options = {});

}  // namespace pipewright
