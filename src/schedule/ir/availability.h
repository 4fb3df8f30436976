#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "pipewright/schedule/schedule.h"

namespace pipewright {

/// Which activations and gradients have reached the stage that needs them:
///   F(s) needs the activation of F(s−1), and B or I(s) the gradient of B or I(s+1),
/// of the same microbatch. Each such datum has a number, and takes one byte.
///
/// REQUIRES: every stage has a rank, every index is within the schedule's counts.
class Availability {
 public:
  static constexpr std::size_t kNothing = std::numeric_limits<std::size_t>::max();

  explicit Availability(const Schedule& schedule)
      : placement_(schedule.placement),
        last_stage_(schedule.last_stage()),
        microbatches_(static_cast<std::size_t>(schedule.microbatches)),
        is_there_(2 * schedule.placement.size() * microbatches_) {}

  /// The datum that `action` needs from a neighbour stage, or kNothing.
  std::size_t needed_by(Action action) const {
    if (action.kind == Kind::F) return action.stage == 0 ? kNothing : activation(action.stage - 1, action);
    if (!gives_input_grad(action.kind) || action.stage == last_stage_) return kNothing;
    return gradient(action.stage + 1, action);
  }

  /// The datum that an F, B or I computes, or a SEND carries, for a neighbour stage, or kNothing.
  std::size_t given_by(Action action) const {
    if (action.kind == Kind::F || action.kind == Kind::SendF) {
      return action.stage == last_stage_ ? kNothing : activation(action.stage, action);
    }
    if (!gives_input_grad(action.kind) && action.kind != Kind::SendB) return kNothing;
    return action.stage == 0 ? kNothing : gradient(action.stage, action);
  }

  /// The rank of the stage that uses what `action` gives. REQUIRES: it gives something.
  Rank consumer(Action action) const {
    const bool forward = action.kind == Kind::F || action.kind == Kind::SendF;
    return placement_[static_cast<std::size_t>(forward ? action.stage + 1 : action.stage - 1)];
  }

  bool has(std::size_t datum) const { return is_there_[datum] != 0; }
  void mark(std::size_t datum) { is_there_[datum] = 1; }
  bool is_ready(Action action) const {
    const std::size_t datum = needed_by(action);
    return datum == kNothing || has(datum);
  }

 private:
  std::size_t activation(int stage, Action action) const {
    return 2 * (static_cast<std::size_t>(stage) * microbatches_ + action.microbatch);
  }
  std::size_t gradient(int stage, Action action) const { return activation(stage, action) + 1; }

  const Placement& placement_;
  Stage last_stage_;
  std::size_t microbatches_;
  std::vector<std::uint8_t> is_there_;
};

}  // namespace pipewright
