#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "pipewright/schedule/schedule.h"
#include "runtime/transport/channel.h"
#include "runtime/world/mesh.h"

namespace pipewright {

/// One action of a rank with everything looked up that it needs.
struct Instruction {
  Action action;
  /// Index of the stage among the rank's own.
  std::uint32_t local_stage = 0;
  /// F and backward: where the data come from; null from a stage of the same rank or
  /// from nowhere. Messages: the channel itself.
  Channel* channel = nullptr;
  /// F and backward: the RECV in this list that brings the data, or −1.
  std::int64_t receive = -1;
  /// SEND: how many messages the receiver has taken from the channel when he posts this one.
  std::size_t taken_before = 0;
};

/// A rank's part of a plan, with channels and slots resolved.
struct Program {
  /// In the order of the plan, so that both have the same positions.
  std::vector<Instruction> instructions;
  /// The rank's stages, in ascending order.
  std::vector<Stage> stages;
  /// By stage over the whole pipeline: index among the rank's own, or −1.
  std::vector<std::int32_t> local_index;
  /// The most parts of a cell that run beside its first.
  std::size_t parallel_parts = 0;
  std::vector<std::shared_ptr<Channel>> channels;
};

/// REQUIRES: `plan` is a valid lowered schedule.
Program compile(const Schedule& plan, Position position, Transport& transport);

/// Whether the parts of a cell can run at the same time: no two are of one stage, whose
/// forward only one thread may call. (That none waits for another is what makes it valid.)
bool independent(std::span<const Action> cell);

}  // namespace pipewright
