#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pipewright/schedule/schedule.h"

namespace pipewright {

/// Which activations and gradients have reached the stage that needs them:
///   F(s) needs the activation of F(s−1), and B or I(s) the gradient of B or I(s+1),
/// of the same microbatch. One byte for each stage and microbatch.
///
/// REQUIRES: every stage has a rank, every index is within the schedule's counts.
class Availability {
 public:
  explicit Availability(const Schedule& schedule)
      : placement_(schedule.placement),
        last_stage_(schedule.last_stage()),
        microbatches_(static_cast<std::size_t>(schedule.microbatches)),
        bits_(schedule.placement.size() * microbatches_) {}

  /// The action whose result `action` needs; false if it needs none from another stage.
  bool needs(Action action, Action& producer) const {
    if (action.kind == Kind::F && action.stage > 0) {
      producer = make_action(action.stage - 1, Kind::F, static_cast<Microbatch>(action.microbatch));
      return true;
    }
    if (gives_input_grad(action.kind) && action.stage < last_stage_) {
      producer = make_action(action.stage + 1, Kind::B, static_cast<Microbatch>(action.microbatch));
      return true;
    }
    return false;
  }

  bool has(Action producer) const { return (bits(producer) & bit(producer.kind)) != 0; }

  bool is_ready(Action action) const {
    Action producer;
    return !needs(action, producer) || has(producer);
  }

  /// The result of an F, B or I, or what a SEND carries, has reached its consumer.
  void mark(Action action) { bits(action) |= bit(action.kind); }

  /// A number for the datum that `producer` gives, to remember what a rank waits for.
  std::size_t datum(Action producer) const {
    return 2 * slot(producer) + (bit(producer.kind) == 1 ? 0 : 1);
  }

  /// The rank whose next stage or previous stage consumes what an F, B, I or SEND gives; −1 if none.
  Rank consumer(Action action) const {
    if (action.kind == Kind::F || action.kind == Kind::SendF) {
      return action.stage == last_stage_ ? -1 : placement_[action.stage + 1U];
    }
    if (gives_input_grad(action.kind) || action.kind == Kind::SendB) {
      return action.stage == 0 ? -1 : placement_[action.stage - 1U];
    }
    return -1;
  }

 private:
  static std::uint8_t bit(Kind kind) { return kind == Kind::F || kind == Kind::SendF ? 1 : 2; }

  std::size_t slot(Action action) const { return action.stage * microbatches_ + action.microbatch; }
  std::uint8_t& bits(Action action) { return bits_[slot(action)]; }
  std::uint8_t bits(Action action) const { return bits_[slot(action)]; }

  const Placement& placement_;
  Stage last_stage_;
  std::size_t microbatches_;
  std::vector<std::uint8_t> bits_;
};

}  // namespace pipewright
