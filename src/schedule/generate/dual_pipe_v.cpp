// DualPipeV: the V of ZB-V with a forward of one leg and a backward of the
// other run as one OVERLAP_F_B, so that each hides the other's communication
// (DeepSeek-AI, 2024, arXiv:2412.19437, cut in half). a and b are a rank's
// first and second stage; the phases of rank r of p:
//
//   aF ×2(p−r−1)   (aF bF) ×(r+1)   (bI W bF) ×(p−r−1)
//   ((aF;bB) (bF;aB)) ×(m−2p+r+1)   (bB (bF;aB)) ×(p−r−1)
//   (bB aB) ×(r+1), the second half of them as I   (W aI) ×(p−r−1)   W ×(r+1)
//
// Bubble (p−1)(F&B + B − 3W); 2p+1 half-stage activations at the peak.

#include <algorithm>
#include <array>

#include "schedule/generate/generators.h"

namespace pipewright {
namespace {

/// Appends one rank's passes; input gradients queue up for their W.
class RankOrder {
 public:
  RankOrder(Stage first, Stage second, std::vector<Action>& out) : stage_{first, second}, out_(out) {}

  void f(int chunk) { out_.push_back(next_forward(chunk)); }
  void b(int chunk) { out_.push_back(next_backward(chunk, Kind::B)); }
  void i(int chunk) {
    out_.push_back(next_backward(chunk, Kind::I));
    owed_weights_.push_back(out_.back());
  }
  void overlap(int forward_chunk, int backward_chunk) {
    out_.push_back(fused(next_forward(forward_chunk)));
    out_.push_back(next_backward(backward_chunk, Kind::B));
  }
  void w_if_owed() {
    if (weights_done_ == owed_weights_.size()) return;
    Action weight = owed_weights_[weights_done_++];
    weight.kind = Kind::W;
    out_.push_back(weight);
  }

 private:
  Action next_forward(int chunk) {
    const auto at = static_cast<std::size_t>(chunk);
    return make_action(stage_[at], Kind::F, forwards_[at]++);
  }
  Action next_backward(int chunk, Kind kind) {
    const auto at = static_cast<std::size_t>(chunk);
    return make_action(stage_[at], kind, backwards_[at]++);
  }

  std::array<Stage, 2> stage_;
  std::array<Microbatch, 2> forwards_{};
  std::array<Microbatch, 2> backwards_{};
  std::vector<Action> owed_weights_;
  std::size_t weights_done_ = 0;
  std::vector<Action>& out_;
};

void build_rank(Rank p, Rank rank, Microbatch m, RankOrder& order) {
  const int hops = p - 1 - rank;
  for (int k = 0; k < 2 * hops; ++k) order.f(0);
  for (int k = 0; k <= rank; ++k) {
    order.f(0);
    order.f(1);
  }
  for (int k = 0; k < hops; ++k) {
    order.i(1);
    order.w_if_owed();
    order.f(1);
  }
  for (int k = 0; k < m - 2 * p + rank + 1; ++k) {
    if (k == 0 && hops == 0) {
      order.f(0);  // apart on the last rank: nothing to hide yet, and the bubble shrinks
      order.b(1);
    } else {
      order.overlap(0, 1);
    }
    order.overlap(1, 0);
  }
  for (int k = 0; k < hops; ++k) {
    order.b(1);
    order.overlap(1, 0);
  }
  // The split starts in the middle of this phase, on odd ranks half a pair earlier.
  const int passes = 2 * (rank + 1);
  const int first_split = 2 * ((rank + 1) / 2) + (rank % 2 == 1 ? 0 : 1);
  for (int k = 0; k < passes; ++k) {
    const int chunk = k % 2 == 0 ? 1 : 0;
    if (k >= first_split) {
      order.i(chunk);
    } else {
      order.b(chunk);
    }
  }
  for (int k = 0; k < hops; ++k) {
    order.w_if_owed();
    order.i(0);
  }
  for (int k = 0; k <= rank; ++k) order.w_if_owed();
}

}  // namespace

Schedule dual_pipe_v(const Sizes& sizes) {
  const Rank p = sizes.ranks;
  const Microbatch m = std::max(sizes.microbatches, 2 * p);  // fewer do not close the pattern
  Schedule schedule = empty_schedule(sizes, v_placement(p, 2));
  schedule.microbatches = m;
  for (Rank rank = 0; rank < p; ++rank) {
    auto& actions = schedule.ranks[static_cast<std::size_t>(rank)];
    actions.reserve(6 * static_cast<std::size_t>(m));
    RankOrder order(rank, 2 * p - 1 - rank, actions);
    build_rank(p, rank, m, order);
  }
  if (m != sizes.microbatches) keep_microbatches(schedule, sizes.microbatches);
  return schedule;
}

}  // namespace pipewright
