#pragma once

#include <map>
#include <string>
#include <tuple>

#include "pipewright/runtime/world.h"
#include "pipewright/schedule/schedule.h"
#include "runtime/device/rank_devices.h"
#include "runtime/transport/direct_channel.h"
#include "runtime/world/mesh.h"

namespace pipewright {

/// By replica and the stages from and to which a channel leads: those of this process that have one.
using Carriers = std::map<std::tuple<int, Stage, Stage>, Carrier>;

/// For what one process sends to another, between their devices; both call it at the same point.
Carrier open_carrier(World& world, const std::string& name, int sender, int receiver, c10::Device device);

/// NCCL for the channels between two processes whose ends are on different CUDA devices. All processes call
/// it at the same point. `devices`: of this one's ranks.
Carriers open_carriers(World& world, const Mesh& mesh, const Schedule& plan, const RankDevices& devices);

}  // namespace pipewright
