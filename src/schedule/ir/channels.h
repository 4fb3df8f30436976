#pragma once

#include <cstddef>
#include <vector>

#include "pipewright/schedule/schedule.h"

namespace pipewright {

/// The stage that a message goes to or comes from.
constexpr Stage peer_stage(Action message) {
  const bool to_next = message.kind == Kind::SendF || message.kind == Kind::RecvB;
  return to_next ? message.stage + 1 : message.stage - 1;
}

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
  return make_action(peer_stage(message), flipped(message.kind), static_cast<Microbatch>(message.microbatch));
}

/// One channel for each ordered pair of ranks that exchange messages, numbered
/// from 0. Everything that one rank sends to another, activations and gradients
/// of all stages, goes through that one channel in order.
///
/// REQUIRES: every stage has a rank.
class Channels {
 public:
  struct Ends {
    Rank from;
    Rank to;
  };

  explicit Channels(const Placement& placement);

  std::size_t size() const { return ends_.size(); }
  const Ends& ends(std::size_t channel) const { return ends_[channel]; }

  /// The channel from one rank to another; size() if they exchange nothing.
  std::size_t between(Rank from, Rank to) const;

  /// The channel of a SEND or RECV between neighbouring stages on different ranks.
  std::size_t of(Action message) const {
    const bool forward = message.kind == Kind::SendF || message.kind == Kind::RecvF;
    const std::size_t sender =
        is_send(message.kind) ? std::size_t{message.stage} : static_cast<std::size_t>(peer_stage(message));
    return forward ? forward_[sender] : backward_[sender];
  }

 private:
  std::vector<std::size_t> forward_;   // by sending stage
  std::vector<std::size_t> backward_;  // by sending stage
  std::vector<Ends> ends_;
};

}  // namespace pipewright
