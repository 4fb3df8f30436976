// dependencies: run in order, all ranks together reach the end: no rank waits
// for data that another can only produce later in the same circle of waits.

#include "schedule/ir/replay.h"
#include "schedule/validate/rules.h"

namespace pipewright {

void check_dependencies(const Subject& subject, Findings& findings) {
  const Schedule& schedule = subject.schedule;
  Replay replay(schedule, subject.format == Format::Lowered);
  if (replay.run([](Rank, std::size_t, std::span<const Action>) {})) return;
  for (Rank rank = 0; rank < schedule.rank_count(); ++rank) {
    const std::span<const Action> actions = schedule.ranks[static_cast<std::size_t>(rank)];
    const std::size_t at = replay.position(rank);
    if (at == actions.size()) continue;
    for (std::size_t part = at; part < at + cell_size(actions, at); ++part) {
      Action missing;
      if (!replay.data().needs(actions[part], missing) || replay.data().is_ready(actions[part])) continue;
      if (subject.index->at(missing.stage, static_cast<Microbatch>(missing.microbatch)).has(Kind::I)) {
        missing.kind = missing.kind == Kind::B ? Kind::I : missing.kind;
      }
      const Rank owner = subject.rank_of(missing.stage);
      const std::size_t stuck = replay.position(owner);
      std::string message = to_text(actions[part]) + " needs " + to_text(missing);
      if (owner == rank) {
        message += ", which comes later on this rank";
      } else if (stuck < schedule.ranks[static_cast<std::size_t>(owner)].size()) {
        message += ", but rank " + std::to_string(owner) + " is held at step " +
                   std::to_string(step_of(schedule.ranks[static_cast<std::size_t>(owner)], stuck)) +
                   " by " + to_text(subject.action(owner, stuck));
      } else {
        message += ", which never reaches this rank";
      }
      findings.add(rank, part, std::move(message));
    }
  }
}

}  // namespace pipewright
