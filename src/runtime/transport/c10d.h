#pragma once

#include <chrono>
#include <memory>

#include "pipewright/runtime/world.h"
#include "runtime/transport/carriers.h"
#include "runtime/transport/channel.h"
#include "runtime/world/mesh.h"

namespace pipewright {

/// Channels between the processes of a world, those with a carrier from device to device, the others through
/// host memory; and mailboxes between ranks of this one. `mesh` outlives the transport.
/// An abort is final: what was under way between processes cannot be sorted out again.
std::unique_ptr<Transport> make_c10d_transport(World& world, const Mesh& mesh, const Schedule& plan,
                                               Carriers carriers, std::chrono::milliseconds timeout);

}  // namespace pipewright
