#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "pipewright/runtime/routes.h"
#include "pipewright/schedule/schedule.h"
#include "runtime/device/rank_devices.h"
#include "runtime/transport/channel.h"
#include "runtime/world/mesh.h"

namespace pipewright {

/// One action of a rank with everything looked up that it needs.
struct Instruction {
  Action action;
  /// Index of the stage among the rank's own.
  std::uint32_t local_stage = 0;
  /// Messages: which of the stage's ways it takes, and the channel.
  std::uint32_t way = 0;
  Channel* channel = nullptr;
  /// SEND: how many messages the receiver has taken from the channel when he posts this one.
  std::size_t taken_before = 0;
};

/// What a stage exchanges with an earlier or a later one: activations one way, their gradients the other.
struct Way {
  Stage peer = 0;
  /// Whether all inputs or outputs of the stage go this way; else those, in the order of the message.
  bool all = true;
  std::vector<std::size_t> slots = {};
  /// Where what the peer sends comes in; null where it is on the same rank.
  Channel* incoming = nullptr;
  /// By microbatch: the place in the program of the RECV that brings it.
  std::vector<std::size_t> receives = {};
  /// On the same rank: which of the peer's ways this is.
  std::size_t mirror = 0;
};

/// A stage's ways, in ascending order of the peers.
struct StageWays {
  std::vector<Way> earlier;
  std::vector<Way> later;
  /// How many inputs the earlier ones bring, where the routes say so.
  std::size_t inputs = 0;
  /// The inputs that later stages take, too, or this one a second time.
  std::vector<std::size_t> shared_inputs;
};

/// A rank's part of a plan, with channels and slots resolved.
struct Program {
  /// In the order of the plan, so that both have the same positions.
  std::vector<Instruction> instructions;
  /// The rank's stages, in ascending order.
  std::vector<Stage> stages;
  /// By stage over the whole pipeline: index among the rank's own, or −1.
  std::vector<std::int32_t> local_index;
  /// By the stage's index among the rank's own.
  std::vector<StageWays> ways;
  /// The most parts of a cell that run beside its first.
  std::size_t parallel_parts = 0;
  std::vector<std::shared_ptr<Channel>> channels;
};

/// REQUIRES: `plan` is a valid lowered schedule with the skips of the routes.
Program compile(const Schedule& plan, const Routes& routes, Position position, const RankDevices& devices,
                Transport& transport);

/// Whether the parts of a cell can run at the same time: no two are of one stage, whose
/// forward only one thread may call. (That none waits for another is what makes it valid.)
bool independent(std::span<const Action> cell);

}  // namespace pipewright
