#include "schedule/lower/passes.h"

namespace pipewright {

Schedule add_reduce_grad(const Schedule& schedule) {
  Schedule result = with_empty_lists(schedule);
  std::vector<Microbatch> left(schedule.placement.size(), schedule.microbatches);
  std::vector<Stage> complete;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    auto& out = result.ranks[rank];
    out.reserve(schedule.ranks[rank].size() + schedule.placement.size() / schedule.ranks.size() + 1);
    for (const Action action : schedule.ranks[rank]) {
      out.push_back(action);
      if (gives_weight_grad(action.kind) && --left[action.stage] == 0) complete.push_back(action.stage);
      if (complete.empty() || action.fused_with_next()) continue;
      for (const Stage stage : complete) out.push_back(make_action(stage, Kind::ReduceGrad));
      complete.clear();
    }
  }
  return result;
}

}  // namespace pipewright
