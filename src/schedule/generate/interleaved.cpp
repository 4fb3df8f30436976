#include "schedule/generate/interleaved.h"

#include <algorithm>

namespace pipewright {
namespace {

/// The actions of one rank, appended pass by pass.
class RankOrder {
 public:
  RankOrder(const Sizes& sizes, const OneForwardOneBackward& rule, Rank rank,
            std::vector<Action>& out)
      : sizes_(sizes), rule_(rule), rank_(rank), out_(out) {}

  void build() {
    const int passes = sizes_.stages_per_rank * sizes_.microbatches;
    const int hops = sizes_.ranks - 1 - rank_;
    const int warmup = std::min((sizes_.stages_per_rank - 1) * rule_.per_round +
                                    rule_.warmup_per_hop * hops,
                                passes);
    const int weight_lag = rule_.split_backward ? rank_ : passes;
    const int cells_per_pass = rule_.split_backward ? 3 : 2;
    out_.reserve(static_cast<std::size_t>(cells_per_pass * passes + 3 * sizes_.ranks + warmup));

    add_bubbles(rank_);
    for (int k = 0; k < warmup; ++k) add_forward(k);
    if (warmup > 0) add_bubbles(wait_for_gradient(warmup, hops));
    for (int k = 0; k < passes; ++k) {
      if (warmup + k < passes) {
        add_forward(warmup + k);
      } else if (!rule_.split_backward) {
        add_bubbles(1);  // drain: the others still run a forward here
      }
      add_backward(k, rule_.split_backward ? Kind::I : Kind::B);
      if (k >= weight_lag) add_backward(k - weight_lag, Kind::W);
    }
    if (!rule_.split_backward) return;
    for (int k = std::max(0, passes - weight_lag); k < passes; ++k) add_backward(k, Kind::W);
  }

 private:
  int wait_for_gradient(int warmup, int hops) const {
    if (rule_.split_backward) return hops;
    return std::max(0, sizes_.stages() + 2 * hops - (warmup + rank_));
  }

  void add_bubbles(int count) { out_.insert(out_.end(), static_cast<std::size_t>(count), Action{}); }

  /// The k-th forward and the k-th backward of this rank.
  void add_forward(int k) { add(k, k / rule_.per_round % sizes_.stages_per_rank, Kind::F); }
  void add_backward(int k, Kind kind) {
    const int last = sizes_.stages_per_rank - 1;
    add(k, last - k / rule_.per_round % sizes_.stages_per_rank, kind);
  }
  void add(int k, int local_stage, Kind kind) {
    const int round = k / (rule_.per_round * sizes_.stages_per_rank);
    out_.push_back(make_action(local_stage * sizes_.ranks + rank_, kind,
                               round * rule_.per_round + k % rule_.per_round));
  }

  const Sizes& sizes_;
  const OneForwardOneBackward& rule_;
  Rank rank_;
  std::vector<Action>& out_;
};

}  // namespace

Schedule one_forward_one_backward(const Sizes& sizes, const OneForwardOneBackward& rule) {
  Schedule schedule = empty_schedule(sizes, loop_placement(sizes.ranks, sizes.stages_per_rank));
  for (Rank rank = 0; rank < sizes.ranks; ++rank) {
    RankOrder(sizes, rule, rank, schedule.ranks[static_cast<std::size_t>(rank)]).build();
  }
  return schedule;
}

Rounds even_rounds(Rank ranks, Microbatch microbatches) {
  for (Microbatch count = microbatches;; ++count) {
    const Microbatch rounds = std::max(1, count / ranks);
    if (count % rounds == 0) return {.microbatches = count, .per_round = count / rounds};
  }
}

}  // namespace pipewright
