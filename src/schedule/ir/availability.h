#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "pipewright/schedule/schedule.h"
#include "schedule/ir/edges.h"

namespace pipewright {

/// Which activations and gradients have reached the stage that needs them:
///   F(s) needs the activation of F(s−1), and B or I(s) the gradient of B or I(s+1),
/// of the same microbatch; and so over every skip. Each such datum has a number,
/// and takes one byte.
///
/// REQUIRES: every stage has a rank, every index is within the schedule's counts.
class Availability {
 public:
  static constexpr std::size_t kNothing = std::numeric_limits<std::size_t>::max();

  explicit Availability(const Schedule& schedule)
      : placement_(schedule.placement),
        edges_(schedule),
        last_stage_(schedule.last_stage()),
        microbatches_(static_cast<std::size_t>(schedule.microbatches)),
        is_there_(2 * edges_.size() * microbatches_) {}

  /// What `action` needs from another stage and has not got yet: the datum, and
  /// the stage that it comes from. `datum` is kNothing if nothing is missing.
  struct Missing {
    std::size_t datum = kNothing;
    Stage from = -1;
  };
  Missing missing(Action action) const {
    const bool forward = action.kind == Kind::F;
    if (!forward && !gives_input_grad(action.kind)) return {};
    const Stage neighbour = forward ? action.stage - 1 : action.stage + 1;
    if (neighbour >= 0 && neighbour <= last_stage_) {
      const std::size_t datum = number(boundary(action.stage, neighbour), forward, action);
      if (!has(datum)) return {.datum = datum, .from = neighbour};
    }
    for (const auto& [peer, edge] :
         forward ? edges_.skips_into(action.stage) : edges_.skips_from(action.stage)) {
      const std::size_t datum = number(edge, forward, action);
      if (!has(datum)) return {.datum = datum, .from = peer};
    }
    return {};
  }
  bool is_ready(Action action) const { return missing(action).datum == kNothing; }

  /// Calls `give(datum, to)` for everything that an F, B or I computes for another
  /// stage `to`: the neighbour first.
  template <class Give>
  void for_each_given(Action action, Give&& give) const {
    const bool forward = action.kind == Kind::F;
    if (!forward && !gives_input_grad(action.kind)) return;
    const Stage neighbour = forward ? action.stage + 1 : action.stage - 1;
    if (neighbour >= 0 && neighbour <= last_stage_) {
      give(number(boundary(action.stage, neighbour), forward, action), neighbour);
    }
    for (const auto& [peer, edge] :
         forward ? edges_.skips_from(action.stage) : edges_.skips_into(action.stage)) {
      give(number(edge, forward, action), peer);
    }
  }

  /// The datum that a SEND carries. REQUIRES: there is an edge for it.
  std::size_t carried_by(Action send) const {
    return number(edges_.of(send), send.kind == Kind::SendF, send);
  }

  Rank rank_of(Stage stage) const { return placement_[static_cast<std::size_t>(stage)]; }
  bool has(std::size_t datum) const { return is_there_[datum] != 0; }
  void mark(std::size_t datum) { is_there_[datum] = 1; }

 private:
  /// The edge between two neighbours.
  static std::size_t boundary(Stage a, Stage b) { return static_cast<std::size_t>(std::min(a, b)); }
  std::size_t number(std::size_t edge, bool forward, Action action) const {
    return 2 * (edge * microbatches_ + action.microbatch) + (forward ? 0 : 1);
  }

  const Placement& placement_;
  Edges edges_;
  Stage last_stage_;
  std::size_t microbatches_;
  std::vector<std::uint8_t> is_there_;
};

}  // namespace pipewright
