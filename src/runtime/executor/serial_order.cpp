#include "runtime/executor/serial_order.h"

#include <algorithm>
#include <span>

#include "pipewright/base/error.h"
#include "schedule/ir/channels.h"

namespace pipewright {

std::vector<Turn> serial_order(const Schedule& plan) {
  const Channels channels(plan);
  std::vector<std::size_t> under_way(channels.size());
  std::vector<std::size_t> next(plan.ranks.size());

  const auto can_run = [&](std::span<const Action> cell) {
    return std::ranges::all_of(
        cell, [&](Action action) { return !is_receive(action.kind) || under_way[channels.of(action)] > 0; });
  };
  /// The latest rank that can go on; none where all have ended.
  const auto choose = [&]() -> std::size_t {
    for (std::size_t rank = plan.ranks.size(); rank-- > 0;) {
      const std::span<const Action> actions = plan.ranks[rank];
      if (next[rank] == actions.size()) continue;
      if (can_run(actions.subspan(next[rank], cell_size(plan.ranks[rank], next[rank])))) return rank;
    }
    return plan.ranks.size();
  };

  std::vector<Turn> order;
  for (std::size_t rank = choose(); rank < plan.ranks.size(); rank = choose()) {
    const std::size_t at = next[rank];
    const std::size_t size = cell_size(plan.ranks[rank], at);
    for (const Action action : std::span(plan.ranks[rank]).subspan(at, size)) {
      if (is_send(action.kind)) ++under_way[channels.of(action)];
      if (is_receive(action.kind)) --under_way[channels.of(action)];
    }
    order.push_back({static_cast<Rank>(rank), at, size});
    next[rank] += size;
  }
  for (std::size_t rank = 0; rank < next.size(); ++rank) {
    if (next[rank] != plan.ranks[rank].size()) throw Error("the plan would deadlock");
  }
  return order;
}

}  // namespace pipewright
