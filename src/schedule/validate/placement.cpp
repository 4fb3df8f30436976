// placement: every stage lives on one rank and all its actions are there; no
// rank is left without work; no index is out of range.

#include <utility>

#include "schedule/validate/rules.h"

namespace pipewright {
namespace {

void check_action(const Subject& subject, Rank rank, std::size_t position, Findings& findings) {
  const Schedule& schedule = subject.schedule;
  const Action action = subject.action(rank, position);
  if (action.kind == Kind::Bubble) return;
  if (action.stage >= schedule.placement.size() ||
      std::cmp_greater_equal(action.microbatch, schedule.microbatches)) {
    findings.add(rank, position,
                 to_text(action) + " is beyond the schedule's " + std::to_string(schedule.stage_count()) +
                     " stages and " + std::to_string(schedule.microbatches) + " microbatches");
  } else if (subject.rank_of(action.stage) != rank) {
    findings.add(rank, position,
                 to_text(action) + ", but stage " + std::to_string(action.stage) + " is on rank " +
                     std::to_string(subject.rank_of(action.stage)));
  }
}

}  // namespace

void check_placement(const Subject& subject, Findings& findings) {
  const Schedule& schedule = subject.schedule;
  if (schedule.placement.empty()) return findings.add_absence(-1, "", "there are no actions at all");
  std::vector<bool> has_stage(schedule.ranks.size());
  for (Stage stage = 0; stage < schedule.stage_count(); ++stage) {
    const Rank rank = subject.rank_of(stage);
    if (rank < 0 || rank >= schedule.rank_count()) {
      findings.add_absence(-1, "", "stage " + std::to_string(stage) + " is on no rank");
      if (findings.full()) return;
    } else {
      has_stage[static_cast<std::size_t>(rank)] = true;
    }
  }
  for (Rank rank = 0; rank < schedule.rank_count(); ++rank) {
    if (!has_stage[static_cast<std::size_t>(rank)]) findings.add_absence(rank, "", "no stage and no work");
  }
  if (subject.survey.in_place) return;
  for (Rank rank = 0; rank < schedule.rank_count(); ++rank) {
    const auto& actions = schedule.ranks[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < actions.size(); ++i) check_action(subject, rank, i, findings);
  }
}

}  // namespace pipewright
