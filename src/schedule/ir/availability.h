#pragma once

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
        microbatches_(static_cast<std::size_t>(schedule.microbatches)),
        is_there_(2 * edges_.size() * microbatches_) {}

  /// What `action` needs from another stage and has not got yet: the datum, and
  /// the stage that it comes from. `datum` is kNothing if nothing is missing.
  struct Missing {
    std::size_t datum = kNothing;
    Stage from = -1;
  };
  Missing missing(Action action) const {
    Missing first;
    const bool forward = action.kind == Kind::F;
    if (!forward && !gives_input_grad(action.kind)) return first;
    edges_.for_each(action.stage, forward ? Edges::To::Earlier : Edges::To::Later,
                    [&](Stage from, std::size_t edge) {
                      const std::size_t datum = number(edge, forward, action);
                      if (first.datum == kNothing && !has(datum)) first = {.datum = datum, .from = from};
                    });
    return first;
  }
  bool is_ready(Action action) const { return missing(action).datum == kNothing; }

  /// Calls `give(datum, to)` for everything that an F, B or I computes for another
  /// stage `to`: the neighbour first.
  template <class Give>
  void for_each_given(Action action, Give&& give) const {
    const bool forward = action.kind == Kind::F;
    if (!forward && !gives_input_grad(action.kind)) return;
    edges_.for_each(action.stage, forward ? Edges::To::Later : Edges::To::Earlier,
                    [&](Stage to, std::size_t edge) { give(number(edge, forward, action), to); });
  }

  /// The datum that a SEND carries. REQUIRES: there is an edge for it.
  std::size_t carried_by(Action send) const {
    return number(edges_.of(send), send.kind == Kind::SendF, send);
  }

  Rank rank_of(Stage stage) const { return placement_[static_cast<std::size_t>(stage)]; }
  bool has(std::size_t datum) const { return is_there_[datum] != 0; }
  void mark(std::size_t datum) { is_there_[datum] = 1; }

 private:
  std::size_t number(std::size_t edge, bool forward, Action action) const {
    return 2 * (edge * microbatches_ + action.microbatch) + (forward ? 0 : 1);
  }

  const Placement& placement_;
  Edges edges_;
  std::size_t microbatches_;
  std::vector<std::uint8_t> is_there_;
};

}  // namespace pipewright
