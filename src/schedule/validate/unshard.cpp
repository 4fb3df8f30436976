// unshard: where a schedule gathers parameters at all, a stage computes only
// between its UNSHARD and its RESHARD, and these two alternate.

#include "schedule/validate/rules.h"

namespace pipewright {

void check_unshard(const Subject& subject, Findings& findings) {
  const Schedule& schedule = subject.schedule;
  if (subject.count(Kind::Unshard) + subject.count(Kind::Reshard) == 0) return;
  std::vector<std::uint8_t> gathered(schedule.placement.size());
  for (Rank rank = 0; rank < schedule.rank_count(); ++rank) {
    const auto& actions = schedule.ranks[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const Action action = actions[i];
      if (is_compute(action.kind) && gathered[action.stage] == 0) {
        findings.add(rank, i, to_text(action) + " while its stage is sharded");
      } else if (action.kind == Kind::Unshard) {
        if (gathered[action.stage] != 0) findings.add(rank, i, to_text(action) + " of a gathered stage");
        gathered[action.stage] = 1;
      } else if (action.kind == Kind::Reshard) {
        if (gathered[action.stage] == 0) findings.add(rank, i, to_text(action) + " of a sharded stage");
        gathered[action.stage] = 0;
      }
    }
  }
}

}  // namespace pipewright
