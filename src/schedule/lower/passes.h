#pragma once

#include "pipewright/schedule/lower.h"

namespace pipewright {

// The passes, one file each: from a valid schedule to a new one. (The one that
// removes bubbles is in ir/bubbles.h.)

/// An I followed by the W of the same stage and microbatch becomes one B.
Schedule merge_backward(const Schedule& schedule);

/// Gathers a stage's parameters before use and frees them when `max_active_stages`
/// others come first. REQUIRES: no bubbles.
Schedule add_unshard(const Schedule& schedule, int max_active_stages);

/// Reduces a stage's gradients right after its last backward.
Schedule add_reduce_grad(const Schedule& schedule);

/// Places a SEND right after what it sends, and its RECV on the other rank at
/// the same moment of one common execution of all ranks: hence, even if every
/// send blocks until it is received, that execution is possible.
Schedule add_messages(const Schedule& schedule);

/// Moves every RECV to just before the action that needs it, or to the last
/// place before it at which a blocked sender would otherwise hold up a circle of
/// ranks. Sends that block still cannot hang the result, and channels keep their order.
Schedule defer_receives(const Schedule& schedule);

}  // namespace pipewright
