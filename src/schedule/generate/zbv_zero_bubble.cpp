// ZB-V: two stages a rank in a V, rank r holding stages r and 2p−1−r, so that
// the loss and the first backward are on rank 0 too (Qi et al., 2024,
// arXiv:2401.10241, section 6). Two ranks, a and b the rank's first and second
// stage:
//
//   rank 0  aF0 aF1 aF2 bF0 bI0 bW0 bF1 bI1 bW1 aI0 aW0 bF2 bI2 bW2 aI1 aW1 aI2 aW2
//   rank 1  .   aF0 bF0 aF1 bF1 bI0 bW0 …
//
// No bubble within a rank's own span at F = I = W, every rank holds p activations.

#include <algorithm>
#include <array>

#include "schedule/generate/generators.h"

namespace pipewright {
namespace {

/// Appends one rank's passes, keeping count of each kind on its two stages.
class ZeroBubbleVOrder {
 public:
  ZeroBubbleVOrder(const Sizes& sizes, Rank rank, std::vector<Action>& out)
      : microbatches_(sizes.microbatches), stage_{rank, sizes.stages() - 1 - rank}, out_(out) {}

  void f(int chunk) { add(chunk, Kind::F, forwards_); }
  void i(int chunk) { add(chunk, Kind::I, inputs_); }
  void w(int chunk) { add(chunk, Kind::W, weights_); }
  void iw(int chunk) {
    i(chunk);
    w(chunk);
  }
  void bubble() { out_.emplace_back(); }

  int forwards(int chunk) const { return forwards_[at(chunk)]; }
  bool owes_weight(int chunk) const { return weights_[at(chunk)] < inputs_[at(chunk)]; }

 private:
  static std::size_t at(int chunk) { return static_cast<std::size_t>(chunk); }

  /// A pass of a microbatch that does not exist leaves its cell empty.
  void add(int chunk, Kind kind, std::array<Microbatch, 2>& count) {
    const Microbatch j = count[at(chunk)]++;
    out_.push_back(j < microbatches_ ? make_action(stage_[at(chunk)], kind, j) : Action{});
  }

  Microbatch microbatches_;
  std::array<Stage, 2> stage_;
  std::array<Microbatch, 2> forwards_{};
  std::array<Microbatch, 2> inputs_{};
  std::array<Microbatch, 2> weights_{};
  std::vector<Action>& out_;
};

}  // namespace

Schedule zbv_zero_bubble(const Sizes& sizes) {
  const Rank p = sizes.ranks;
  // The pattern needs this many microbatches to close; those beyond m stay empty.
  const Microbatch n = std::max(2 * p - 1, sizes.microbatches);
  Schedule schedule = empty_schedule(sizes, v_placement(p, 2));
  for (Rank rank = 0; rank < p; ++rank) {
    auto& actions = schedule.ranks[static_cast<std::size_t>(rank)];
    actions.reserve(static_cast<std::size_t>(rank) + 6 * static_cast<std::size_t>(n));
    ZeroBubbleVOrder order(sizes, rank, actions);
    for (int k = 0; k < rank; ++k) order.bubble();

    // Warm-up: fill the V down its first leg, and up its second.
    for (int k = 0; k < 2 * (p - rank) - 1; ++k) order.f(0);
    for (int k = 0; k < rank; ++k) {
      order.f(1);
      order.f(0);
    }
    for (int k = 0; k < p - rank; ++k) {
      order.f(1);
      order.iw(1);
    }
    // Steady: one forward and one whole backward on each leg.
    while (order.forwards(1) < order.forwards(0) || order.forwards(0) < n) {
      if (order.forwards(0) < n) order.f(0);
      order.iw(0);
      order.f(1);
      order.iw(1);
    }
    // Drain: input gradients first, weights into the gaps.
    for (int k = 0; k < rank; ++k) {
      order.i(0);
      order.i(1);
    }
    for (int k = 0; k < p - rank; ++k) {
      order.i(0);
      order.w(0);
    }
    while (order.owes_weight(1)) order.w(1);
    while (order.owes_weight(0)) order.w(0);
  }
  return schedule;
}

}  // namespace pipewright
