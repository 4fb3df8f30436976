#include "pipewright/schedule/schedule.h"

#include <algorithm>
#include <set>

namespace pipewright {
namespace {

template <class RankOf>
Placement place(Rank ranks, int stages_per_rank, RankOf rank_of) {
  Placement placement;
  placement.reserve(static_cast<std::size_t>(ranks) * static_cast<std::size_t>(stages_per_rank));
  for (int lap = 0; lap < stages_per_rank; ++lap) {
    for (Rank at = 0; at < ranks; ++at) placement.push_back(rank_of(lap, at));
  }
  return placement;
}

}  // namespace

Placement loop_placement(Rank ranks, int stages_per_rank) {
  return place(ranks, stages_per_rank, [](int, Rank at) { return at; });
}

Placement v_placement(Rank ranks, int stages_per_rank) {
  return place(ranks, stages_per_rank,
               [ranks](int lap, Rank at) { return lap % 2 == 0 ? at : ranks - 1 - at; });
}

std::size_t Schedule::action_count() const {
  std::size_t count = 0;
  for (const auto& actions : ranks) count += actions.size();
  return count;
}

Schedule with_empty_lists(const Schedule& schedule) {
  Schedule result;
  result.ranks.resize(schedule.ranks.size());
  result.placement = schedule.placement;
  result.microbatches = schedule.microbatches;
  result.skips = schedule.skips;
  return result;
}

bool is_lowered(const Schedule& schedule) {
  return std::ranges::any_of(schedule.ranks, [](const auto& actions) {
    return std::ranges::any_of(actions, [](Action action) { return action.kind > Kind::W; });
  });
}

void infer_placement(Schedule& schedule) {
  schedule.placement.clear();
  schedule.microbatches = 0;
  std::set<Skip> skips;
  for (Rank rank = 0; rank < schedule.rank_count(); ++rank) {
    for (const Action action : schedule.ranks[static_cast<std::size_t>(rank)]) {
      if (action.kind == Kind::Bubble) continue;
      if (action.stage >= schedule.placement.size()) schedule.placement.resize(action.stage + 1U, -1);
      Rank& home = schedule.placement[action.stage];
      if (home < 0) home = rank;
      schedule.microbatches = std::max(schedule.microbatches, static_cast<Microbatch>(action.microbatch) + 1);
      if (action.skipped() == 0 || !is_message(action.kind)) continue;
      const auto [from, to] = std::minmax({Stage{action.stage}, peer_stage(action)});
      skips.insert({.from = from, .to = to});
    }
  }
  schedule.skips.assign(skips.begin(), skips.end());
}

}  // namespace pipewright
