#include "schedule/generate/interleaved.h"

#include <algorithm>

#include "schedule/ir/bubbles.h"

namespace pipewright {
namespace {

/// Counts through a rank's passes of one kind: `per_round` microbatches on one
/// local stage, the same on the next, and so on; then the next round.
class PassCounter {
 public:
  PassCounter(const Sizes& sizes, Microbatch per_round) : sizes_(sizes), per_round_(per_round) {}

  /// How many of the rank's stages came before in this round.
  int local_stage() const { return local_stage_; }
  Microbatch microbatch() const { return round_start_ + in_round_; }

  void advance() {
    if (++in_round_ < per_round_) return;
    in_round_ = 0;
    if (++local_stage_ < sizes_.stages_per_rank) return;
    local_stage_ = 0;
    round_start_ += per_round_;
  }

 private:
  const Sizes& sizes_;
  Microbatch per_round_;
  Microbatch round_start_ = 0;
  Microbatch in_round_ = 0;
  int local_stage_ = 0;
};

/// The actions of one rank, appended pass by pass.
class InterleavedOrder {
 public:
  InterleavedOrder(const Sizes& sizes, const OneForwardOneBackward& rule, Rank rank, std::vector<Action>& out)
      : sizes_(sizes),
        rule_(rule),
        rank_(rank),
        out_(out),
        forwards_(sizes, rule.per_round),
        backwards_(sizes, rule.per_round),
        weights_(sizes, rule.per_round) {}

  void build() {
    const int passes = sizes_.stages_per_rank * sizes_.microbatches;
    const int hops = sizes_.ranks - 1 - rank_;
    const int warmup =
        std::min((sizes_.stages_per_rank - 1) * rule_.per_round + rule_.warmup_per_hop * hops, passes);
    const int weight_lag = rule_.split_backward ? rank_ : passes;
    const std::size_t cells_per_pass = rule_.split_backward ? 3 : 2;
    const int bubbles = 3 * sizes_.ranks + warmup;  // at most
    out_.reserve(cells_per_pass * static_cast<std::size_t>(passes) + static_cast<std::size_t>(bubbles));

    add_bubbles(rank_);
    for (int k = 0; k < warmup; ++k) add_forward();
    if (warmup > 0) add_bubbles(wait_for_gradient(warmup, hops));
    for (int k = 0; k < passes; ++k) {
      if (warmup + k < passes) {
        add_forward();
      } else if (!rule_.split_backward) {
        add_bubbles(1);  // drain: the others still run a forward here
      }
      add_backward(backwards_, rule_.split_backward ? Kind::I : Kind::B);
      if (k >= weight_lag) add_backward(weights_, Kind::W);
    }
    if (!rule_.split_backward) return;
    for (int k = std::max(0, passes - weight_lag); k < passes; ++k) add_backward(weights_, Kind::W);
  }

 private:
  int wait_for_gradient(int warmup, int hops) const {
    if (rule_.split_backward) return hops;
    return std::max(0, sizes_.stages() + 2 * hops - (warmup + rank_));
  }

  void add_bubbles(int count) { out_.insert(out_.end(), static_cast<std::size_t>(count), Action{}); }

  void add_forward() { add(forwards_, forwards_.local_stage(), Kind::F); }
  void add_backward(PassCounter& counter, Kind kind) {
    add(counter, sizes_.stages_per_rank - 1 - counter.local_stage(), kind);
  }
  void add(PassCounter& counter, int local_stage, Kind kind) {
    out_.push_back(make_action(local_stage * sizes_.ranks + rank_, kind, counter.microbatch()));
    counter.advance();
  }

  const Sizes& sizes_;
  const OneForwardOneBackward& rule_;
  Rank rank_;
  std::vector<Action>& out_;
  PassCounter forwards_;
  PassCounter backwards_;
  PassCounter weights_;
};

}  // namespace

Schedule one_forward_one_backward(const Sizes& sizes, const OneForwardOneBackward& rule) {
  Schedule schedule = empty_schedule(sizes, loop_placement(sizes.ranks, sizes.stages_per_rank));
  for (Rank rank = 0; rank < sizes.ranks; ++rank) {
    InterleavedOrder(sizes, rule, rank, schedule.ranks[static_cast<std::size_t>(rank)]).build();
  }
  return schedule;
}

Schedule one_forward_one_backward_in_rounds(const Sizes& sizes, int warmup_per_hop, bool split_backward) {
  Sizes even = sizes;
  while (even.microbatches % std::max(1, even.microbatches / even.ranks) != 0) ++even.microbatches;
  const Microbatch rounds = std::max(1, even.microbatches / even.ranks);
  Schedule schedule = one_forward_one_backward(even, {.warmup_per_hop = warmup_per_hop,
                                                      .per_round = even.microbatches / rounds,
                                                      .split_backward = split_backward});
  if (even.microbatches == sizes.microbatches) return schedule;
  schedule = without_bubbles(schedule);
  keep_microbatches(schedule, sizes.microbatches);
  insert_bubbles(schedule);
  return schedule;
}

}  // namespace pipewright
