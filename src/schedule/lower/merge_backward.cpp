#include "schedule/lower/passes.h"

namespace pipewright {
namespace {

/// Whether the actions at `at` and after it are an I by itself and its W.
bool is_split_pair(const std::vector<Action>& actions, std::size_t at) {
  if (at + 1 == actions.size() || actions[at].kind != Kind::I || actions[at + 1].kind != Kind::W)
    return false;
  const bool is_part = actions[at].fused_with_next() || (at > 0 && actions[at - 1].fused_with_next());
  return !is_part && actions[at].stage == actions[at + 1].stage &&
         actions[at].microbatch == actions[at + 1].microbatch;
}

}  // namespace

Schedule merge_backward(const Schedule& schedule) {
  Schedule result = with_empty_lists(schedule);
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const auto& actions = schedule.ranks[rank];
    auto& out = result.ranks[rank];
    out.reserve(actions.size());
    for (std::size_t at = 0; at < actions.size(); ++at) {
      out.push_back(actions[at]);
      if (!is_split_pair(actions, at)) continue;
      out.back().kind = Kind::B;
      ++at;
    }
  }
  return result;
}

}  // namespace pipewright
