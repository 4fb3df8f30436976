#include "schedule/ir/bubbles.h"

#include <algorithm>
#include <utility>

namespace pipewright {

Schedule without_bubbles(const Schedule& schedule) {
  Schedule result = with_empty_lists(schedule);
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    auto& out = result.ranks[rank];
    out.reserve(schedule.ranks[rank].size());
    for (const Action action : schedule.ranks[rank]) {
      if (action.kind != Kind::Bubble) out.push_back(action);
    }
  }
  return result;
}

void insert_bubbles(Schedule& schedule, Replay::Dependencies dependencies) {
  const auto microbatches = static_cast<std::size_t>(schedule.microbatches);
  const auto slot = [microbatches](int stage, Action action) {
    return static_cast<std::size_t>(stage) * microbatches + action.microbatch;
  };
  // The first step at which a stage's activation or gradient can be used.
  std::vector<std::uint32_t> activation(schedule.placement.size() * microbatches);
  std::vector<std::uint32_t> gradient(activation.size());
  const auto earliest = [&](Action action) -> std::uint32_t {
    if (action.kind == Kind::F && action.stage > 0) return activation[slot(action.stage - 1, action)];
    if (gives_input_grad(action.kind) && action.stage < schedule.last_stage() &&
        dependencies == Replay::Dependencies::All) {
      return gradient[slot(action.stage + 1, action)];
    }
    return 0;
  };

  std::vector<std::vector<Action>> spaced(schedule.ranks.size());
  std::vector<std::uint32_t> steps(schedule.ranks.size());
  for (std::size_t rank = 0; rank < spaced.size(); ++rank) {
    spaced[rank].reserve(schedule.ranks[rank].size());
  }
  Replay(schedule, false, dependencies).run([&](Rank rank, std::size_t, std::span<const Action> cell) {
    auto& out = spaced[static_cast<std::size_t>(rank)];
    std::uint32_t& step = steps[static_cast<std::size_t>(rank)];
    std::uint32_t start = step;
    for (const Action action : cell) start = std::max(start, earliest(action));
    for (; step < start; ++step) out.push_back(Action{});
    for (const Action action : cell) out.push_back(action);
    step = start + 1;
    for (const Action action : cell) {
      if (action.kind == Kind::F) activation[slot(action.stage, action)] = step;
      if (gives_input_grad(action.kind)) gradient[slot(action.stage, action)] = step;
    }
  });
  schedule.ranks = std::move(spaced);
}

}  // namespace pipewright
