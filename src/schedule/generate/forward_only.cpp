// Forward only: inference and evaluation, on any placement. Each rank runs, of
// what is there to run, the furthest stage first, so that microbatches leave
// the pipeline as early as they can. Two ranks, four stages in a V:
//
//   rank 0  0F0 0F1 0F2 3F0 .   3F1 .   3F2
//   rank 1  .   1F0 2F0 1F1 2F1 1F2 2F2
//
// With stages in a loop it is as short as the forwards of interleaved 1F1B.

#include <utility>

#include "schedule/generate/generators.h"

namespace pipewright {

Schedule forward_only(const Sizes& sizes, Placement placement) {
  Schedule schedule = empty_schedule(sizes, std::move(placement));
  const auto stages = schedule.placement.size();
  std::vector<std::vector<Stage>> local(schedule.ranks.size());  // furthest first
  for (Stage stage = schedule.last_stage(); stage >= 0; --stage) {
    local[static_cast<std::size_t>(schedule.placement[static_cast<std::size_t>(stage)])].push_back(stage);
  }
  std::vector<Microbatch> done(stages);  // forwards run before the current step
  std::vector<Stage> running;            // what the current step runs
  std::size_t left = stages * static_cast<std::size_t>(sizes.microbatches);
  while (left > 0) {
    running.clear();
    for (std::size_t rank = 0; rank < local.size(); ++rank) {
      Action action;
      for (const Stage stage : local[rank]) {
        const auto at = static_cast<std::size_t>(stage);
        const Microbatch ready = stage == 0 ? sizes.microbatches : done[at - 1];
        if (done[at] == ready) continue;
        action = make_action(stage, Kind::F, done[at]);
        running.push_back(stage);
        break;
      }
      schedule.ranks[rank].push_back(action);
    }
    for (const Stage stage : running) ++done[static_cast<std::size_t>(stage)];
    left -= running.size();
  }
  for (auto& actions : schedule.ranks) {
    while (!actions.empty() && actions.back().kind == Kind::Bubble) actions.pop_back();
  }
  return schedule;
}

}  // namespace pipewright
