#pragma once

#include <vector>

#include "pipewright/runtime/values.h"
#include "pipewright/runtime/world.h"
#include "pipewright/schedule/timeline.h"
#include "runtime/transport/channel.h"

namespace pipewright {

/// Values of process `root`, in every process. All call it at the same point.
Values broadcast(World& world, const Values& values, int root);

/// Each process has the losses and outputs, by microbatch, of those replicas whose last stages it has;
/// afterwards every one has those of all, in their order. `roots`: by replica, the process that has them.
/// One broadcast for each.
void share_results(World& world, const std::vector<int>& roots, std::size_t microbatches,
                   std::vector<at::Tensor>& losses, std::vector<Values>& outputs);

/// Each process has the actions of its own ranks, in milliseconds from its own `start`; afterwards
/// every one has all, from the earliest start. Processes on different machines, whose
/// clocks cannot be compared, count as started at the same time.
void gather_timeline(World& world, const std::vector<int>& processes, Clock::time_point start,
                     Timeline& timeline);

}  // namespace pipewright
