#pragma once

#include <c10/core/Device.h>

#include <map>
#include <utility>

#include "pipewright/base/ids.h"

namespace pipewright {

/// Where ranks compute.
struct RankDevices {
  /// By replica and rank, with their numbers; only ranks of this process.
  std::map<std::pair<int, Rank>, c10::Device> known = {};
  /// Whether each rank has streams of its own, and not its thread's current ones.
  bool own_streams = true;

  c10::Device at(int replica, Rank rank) const {
    const auto found = known.find({replica, rank});
    return found == known.end() ? c10::Device(c10::kCPU) : found->second;
  }
};

}  // namespace pipewright
