#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "pipewright/runtime/world.h"
#include "runtime/transport/channel.h"

namespace pipewright {

/// Channels between the processes of a world, and mailboxes between ranks of this one.
/// `processes`: for each rank of the pipeline the process where it runs.
/// An abort is final: what was under way between processes cannot be sorted out again.
std::unique_ptr<Transport> make_c10d_transport(World& world, std::vector<int> processes, Stage stages,
                                               std::chrono::milliseconds timeout);

}  // namespace pipewright
