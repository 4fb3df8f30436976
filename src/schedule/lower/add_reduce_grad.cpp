#include "schedule/lower/passes.h"

namespace pipewright {

void add_reduce_grad(Schedule& schedule) {
  std::vector<Microbatch> left(schedule.placement.size(), schedule.microbatches);
  std::vector<Stage> complete;
  for (auto& actions : schedule.ranks) {
    std::vector<Action> out;
    out.reserve(actions.size() + schedule.placement.size() / schedule.ranks.size() + 1);
    for (const Action action : actions) {
      out.push_back(action);
      if (gives_weight_grad(action.kind) && --left[action.stage] == 0) complete.push_back(action.stage);
      if (action.fused_with_next) continue;
      for (const Stage stage : complete) out.push_back(make_action(stage, Kind::ReduceGrad));
      complete.clear();
    }
    actions = std::move(out);
  }
}

}  // namespace pipewright
