#include "schedule/ir/bubbles.h"

#include <algorithm>
#include <utility>

namespace pipewright {

void remove_bubbles(Schedule& schedule) {
  for (auto& actions : schedule.ranks) {
    std::erase_if(actions, [](Action action) { return action.kind == Kind::Bubble; });
  }
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
    out.insert(out.end(), start - step, Action{});
    out.insert(out.end(), cell.begin(), cell.end());
    step = start + 1;
    for (const Action action : cell) {
      if (action.kind == Kind::F) activation[slot(action.stage, action)] = step;
      if (gives_input_grad(action.kind)) gradient[slot(action.stage, action)] = step;
    }
  });
  schedule.ranks = std::move(spaced);
}

}  // namespace pipewright
