#pragma once

#include <vector>

#include "pipewright/flight/record.h"
#include "pipewright/schedule/render.h"

namespace pipewright {

/// The latest step that the ranks of a replica have begun an action of, in milliseconds from its first
/// action on. What has not ended is drawn up to when its record was written; but where nothing began or
/// ended any more for long, that time is cut so that the rest can be seen, and the label says so.
/// REQUIRES: the records are of one world, each of another process, and the world has the replica.
Drawing draw_last_step(const std::vector<ProcessRecord>& records, int replica);

}  // namespace pipewright
