// reduce_grad: where a schedule reduces gradients at all, it does so once for
// every stage, after the stage's last backward.

#include <algorithm>

#include "schedule/validate/rules.h"

namespace pipewright {

void check_reduce_grad(const Subject& subject, Findings& findings) {
  const Schedule& schedule = subject.schedule;
  if (subject.count(Kind::ReduceGrad) == 0) return;
  std::vector<bool> reduced(schedule.placement.size());
  for (Rank rank = 0; rank < schedule.rank_count(); ++rank) {
    const auto& actions = schedule.ranks[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const Action action = actions[i];
      if (action.kind != Kind::ReduceGrad) continue;
      if (reduced[action.stage]) findings.add(rank, i, to_text(action) + " is there twice");
      reduced[action.stage] = true;
      if (!subject.has_backward()) {
        findings.add(rank, i, to_text(action) + " in a schedule without backwards");
        continue;
      }
      std::uint32_t last = 0;
      for (Microbatch j = 0; j < schedule.microbatches; ++j) {
        last = std::max(last, subject.index->at(action.stage, j).weight_grad());
      }
      if (i < last) {
        findings.add(rank, i, to_text(action) + " before " + to_text(subject.action(rank, last)));
      }
    }
  }
  if (!subject.has_backward()) return;
  for (Stage stage = 0; stage < schedule.stage_count(); ++stage) {
    if (reduced[static_cast<std::size_t>(stage)]) continue;
    const std::string name = to_text(make_action(stage, Kind::ReduceGrad));
    findings.add_absence(subject.rank_of(stage), name, name + " is missing");
  }
}

}  // namespace pipewright
