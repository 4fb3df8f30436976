#pragma once

#include <cstddef>
#include <vector>

#include "pipewright/schedule/schedule.h"
#include "schedule/ir/edges.h"

namespace pipewright {

/// The action at the other end: the receive of a send, the send of a receive.
constexpr Action counterpart(Action message) {
  const auto flipped = [](Kind kind) {
    switch (kind) {
      case Kind::SendF: return Kind::RecvF;
      case Kind::RecvF: return Kind::SendF;
      case Kind::SendB: return Kind::RecvB;
      default: return Kind::SendB;
    }
  };
  return {.kind = flipped(message.kind),
          .link = message.link,
          .stage = static_cast<std::uint16_t>(peer_stage(message)),
          .microbatch = message.microbatch};
}

/// One channel for each ordered pair of ranks that exchange messages, numbered
/// from 0. Everything that one rank sends to another, activations and gradients
/// of all stages, goes through that one channel in order.
///
/// REQUIRES: every stage has a rank; what Edges asks for.
class Channels {
 public:
  struct Ends {
    Rank from;
    Rank to;
  };

  explicit Channels(const Schedule& schedule);

  std::size_t size() const { return ends_.size(); }
  const Ends& ends(std::size_t channel) const { return ends_[channel]; }

  /// The channel from one rank to another; size() if they exchange nothing.
  std::size_t between(Rank from, Rank to) const;

  /// The channel of a SEND or RECV. REQUIRES: its stages are on different ranks, and neighbours or
  /// joined by a skip.
  std::size_t of(Action message) const {
    const bool forward = message.kind == Kind::SendF || message.kind == Kind::RecvF;
    return channels_[2 * edges_.of(message) + (forward ? 0 : 1)];
  }

 private:
  Edges edges_;
  std::vector<std::size_t> channels_;  // by edge, forward and backward
  std::vector<Ends> ends_;
};

}  // namespace pipewright
