#pragma once

#include <c10/core/Device.h>

#include <map>
#include <utility>
#include <vector>

#include "pipewright/base/ids.h"
#include "pipewright/runtime/stage_model.h"
#include "pipewright/schedule/schedule.h"

namespace pipewright {

/// Where ranks compute.
struct RankDevices {
  /// By replica and rank, with their numbers; only ranks of this process.
  std::map<std::pair<int, Rank>, c10::Device> known = {};
  /// Whether each rank has streams of its own, and not its thread's current ones.
  bool own_streams = true;

  /// The ranks of a replica: where their stages are. One that holds nothing is where it is wanted, by rank;
  /// or, where nothing is, with the rank before it, or the first that holds something.
  void add(int replica, const std::map<Stage, StageModel>& stages, const Placement& placement,
           const std::vector<c10::Device>& wanted);

  c10::Device at(int replica, Rank rank) const {
    const auto found = known.find({replica, rank});
    return found == known.end() ? c10::Device(c10::kCPU) : found->second;
  }
};

}  // namespace pipewright
