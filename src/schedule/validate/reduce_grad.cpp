// reduce_grad: where a schedule reduces gradients at all, it does so once for
// every stage, after the stage's last backward.

#include "schedule/validate/rules.h"

namespace pipewright {

void check_reduce_grad(const Subject& subject, Findings& findings) {
  const Schedule& schedule = subject.schedule;
  if (subject.count(Kind::ReduceGrad) == 0) return;
  std::vector<std::uint8_t> reduced(schedule.placement.size());
  for (Rank rank = 0; rank < schedule.rank_count(); ++rank) {
    const auto& actions = schedule.ranks[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const Action action = actions[i];
      if (action.kind == Kind::ReduceGrad) {
        if (reduced[action.stage] != 0) findings.add(rank, i, to_text(action) + " is there twice");
        if (!subject.has_backward())
          findings.add(rank, i, to_text(action) + " in a schedule without backwards");
        reduced[action.stage] = 1;
      } else if (gives_weight_grad(action.kind) && reduced[action.stage] != 0) {
        findings.add(rank, i, to_text(action) + " after the stage's REDUCE_GRAD");
      }
    }
  }
  if (!subject.has_backward()) return;
  for (Stage stage = 0; stage < schedule.stage_count(); ++stage) {
    if (reduced[static_cast<std::size_t>(stage)] != 0) continue;
    const std::string name = to_text(make_action(stage, Kind::ReduceGrad));
    findings.add_absence(subject.rank_of(stage), name, name + " is missing");
  }
}

}  // namespace pipewright
