#pragma once

#include <array>
#include <functional>

#include "schedule/generate/generators.h"

namespace pipewright {

/// V schedules that repeat one block of six passes every six half-stage slots
/// under a bound on activations (Qi et al., 2024, arXiv:2405.15362).
struct ControlledV {
  /// Planned slots of the first microbatch's F and F, I and I on a rank, in the
  /// order in which a microbatch passes: down (first stage), up (second stage),
  /// back down, back up. Those of microbatch j are 6j later.
  using Slots = std::array<int, 4>;
  std::function<Slots(Rank rank)> slots;
  /// Half-stage activations that a rank may hold, from F to the end of W.
  int max_activations;
};

/// Squeezes the planned blocks: each rank, one pass a tick, takes the pass that
/// comes first in its plan; runs ahead of the plan where that cannot make a
/// planned pass wait for memory; and fills the rest with W, oldest first.
///
/// Why it neither hangs nor exceeds the bound: every dependency has a smaller
/// planned slot, so the pending pass with the smallest slot of all is ready and
/// first in its rank's plan; memory for it is left, as the plan itself stays
/// within the bound and what runs ahead leaves room for what it overtakes.
Schedule controlled_v(const Sizes& sizes, const ControlledV& plan);

}  // namespace pipewright
