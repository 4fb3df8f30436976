#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "pipewright/schedule/schedule.h"

namespace pipewright {

/// A rank that can never go on: at `step` it wants to run `action`, and for
/// that `peer` would have to run `needs`.
struct BlockedRank {
  Rank rank;
  std::size_t step;
  Action action;
  Rank peer;
  Action needs;
};

/// Empty `cycle`: the plan runs to its end. Otherwise the ranks of the cycle,
/// each waiting for the next and the last for the first; or, where a rank waits
/// for one that has ended, the chain of waits up to it.
struct DeadlockVerdict {
  std::vector<BlockedRank> cycle;
  bool free() const { return cycle.empty(); }
};

/// `rank 0 step 3: 0SEND_F1 waits for 1RECV_F1 of rank 1`, a line a rank.
std::string to_text(const DeadlockVerdict& verdict);

/// How many messages a channel, from one rank to another, holds before a send blocks.
struct ChannelCapacity {
  struct Override {
    Rank from;
    Rank to;
    std::size_t messages;
  };
  std::size_t messages = 0;
  std::vector<Override> overrides = {};
};

/// Decides whether a lowered plan can hang. Messages from one rank to another
/// form one ordered channel; a send into a full channel blocks. With no
/// capacity, the worst case, a send blocks until its receive is reached.
/// REQUIRES: the plan passes `validate`.
DeadlockVerdict prove_deadlock_free(const Schedule& plan, const ChannelCapacity& capacity = {});

}  // namespace pipewright
