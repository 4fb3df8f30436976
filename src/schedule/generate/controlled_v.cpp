#include "schedule/generate/controlled_v.h"

#include <algorithm>
#include <optional>

namespace pipewright {
namespace {

/// The passes of a microbatch on one rank, in the order of `ControlledV::Slots`.
enum Pass : std::uint8_t { kF0, kF1, kI1, kI0 };
constexpr std::array<Pass, 4> kPasses = {kF0, kF1, kI1, kI0};
constexpr int kPeriod = 6;

constexpr bool is_forward(Pass pass) { return pass == kF0 || pass == kF1; }

class Squeeze {
 public:
  Squeeze(const Sizes& sizes, const ControlledV& plan)
      : sizes_(sizes),
        max_activations_(plan.max_activations),
        schedule_(empty_schedule(sizes, v_placement(sizes.ranks, 2))),
        ranks_(static_cast<std::size_t>(sizes.ranks)) {
    for (Rank rank = 0; rank < sizes.ranks; ++rank) {
      ranks_[at(rank)].slots = plan.slots(rank);
      actions(rank).reserve(6 * static_cast<std::size_t>(sizes.microbatches));
    }
  }

  Schedule run() {
    const auto per_rank = 6 * static_cast<std::size_t>(sizes_.microbatches);
    std::vector<std::optional<Pass>> choices(ranks_.size());
    std::size_t left = ranks_.size() * per_rank;
    while (left > 0) {
      for (Rank rank = 0; rank < sizes_.ranks; ++rank) choices[at(rank)] = choose(rank);
      for (Rank rank = 0; rank < sizes_.ranks; ++rank) left -= commit(rank, choices[at(rank)]);
    }
    for (auto& list : schedule_.ranks) {
      while (list.back().kind == Kind::Bubble) list.pop_back();
    }
    return std::move(schedule_);
  }

 private:
  struct RankState {
    ControlledV::Slots slots;
    std::array<Microbatch, 4> done{};
    int activations = 0;
    std::vector<Action> weights;  // in the order of their I
    std::size_t weights_done = 0;

    /// The planned slot of the next microbatch of a pass.
    int slot(Pass pass) const { return slots[pass] + kPeriod * done[pass]; }
  };

  static std::size_t at(Rank rank) { return static_cast<std::size_t>(rank); }
  std::vector<Action>& actions(Rank rank) { return schedule_.ranks[at(rank)]; }

  /// Reads only what earlier ticks have done.
  std::optional<Pass> choose(Rank rank) const {
    const RankState& state = ranks_[at(rank)];
    std::array<Pass, 4> order = kPasses;
    std::ranges::sort(order, {}, [&](Pass pass) { return state.slot(pass); });
    bool in_plan = true;
    for (const Pass pass : order) {
      if (state.done[pass] == sizes_.microbatches) continue;
      if (is_allowed(state, pass, in_plan) && is_ready(rank, pass)) return pass;
      in_plan = false;
    }
    return std::nullopt;
  }

  bool is_allowed(const RankState& state, Pass pass, bool in_plan) const {
    if (!is_forward(pass)) {
      return in_plan || state.done[kF1] == sizes_.microbatches;  // gradients run ahead in the drain alone
    }
    if (in_plan) return state.activations < max_activations_;
    // Forwards run ahead in the warm-up alone, and leave room for those they overtake.
    const int slot = state.slot(pass);
    if (slot >= state.slots[kI0]) return false;
    const Pass other = pass == kF0 ? kF1 : kF0;
    const int planned_before = slot <= state.slots[other] ? 0 : (slot - 1 - state.slots[other]) / kPeriod + 1;
    const int owed = std::max(0, std::min(sizes_.microbatches, planned_before) - state.done[other]);
    return state.activations + 1 + owed <= max_activations_;
  }

  bool is_ready(Rank rank, Pass pass) const {
    const Microbatch j = ranks_[at(rank)].done[pass];
    const auto has = [&](Rank from, Pass needed) { return ranks_[at(from)].done[needed] > j; };
    const bool is_turn = rank == sizes_.ranks - 1;  // the bottom of the V
    switch (pass) {
      case kF0: return rank == 0 || has(rank - 1, kF0);
      case kF1: return is_turn ? has(rank, kF0) : has(rank + 1, kF1);
      case kI1: return has(rank, kF1) && (rank == 0 || has(rank - 1, kI1));
      default: return is_turn ? has(rank, kI1) : has(rank + 1, kI0);
    }
  }

  /// Runs the pass, or else the oldest W that is owed, or nothing. The number of actions run.
  std::size_t commit(Rank rank, std::optional<Pass> choice) {
    RankState& state = ranks_[at(rank)];
    Action action;
    if (choice) {
      const Pass pass = *choice;
      const bool first_leg = pass == kF0 || pass == kI0;
      const Stage stage = first_leg ? rank : sizes_.stages() - 1 - rank;
      action = make_action(stage, is_forward(pass) ? Kind::F : Kind::I, state.done[pass]++);
      if (is_forward(pass)) {
        ++state.activations;
      } else {
        state.weights.push_back(make_action(stage, Kind::W, static_cast<Microbatch>(action.microbatch)));
      }
    } else if (state.weights_done < state.weights.size()) {
      action = state.weights[state.weights_done++];
      --state.activations;
    }
    actions(rank).push_back(action);
    return action.kind == Kind::Bubble ? 0 : 1;
  }

  const Sizes& sizes_;
  int max_activations_;
  Schedule schedule_;
  std::vector<RankState> ranks_;
};

}  // namespace

Schedule controlled_v(const Sizes& sizes, const ControlledV& plan) { return Squeeze(sizes, plan).run(); }

}  // namespace pipewright
