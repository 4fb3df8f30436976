// dependencies: run in order, all ranks together reach the end: no rank waits
// for data that another can only produce later in the same circle of waits.
//
// In a lowered schedule data comes to a rank by its receives, which the rule on
// messages puts before their use, and prove_deadlock_free decides whether they
// all complete. What is left for this rule is data that stays on its rank. Where
// it does so over a skip, the way through the stages between keeps its order.

#include "schedule/ir/replay.h"
#include "schedule/validate/rules.h"

namespace pipewright {
namespace {

void check_local(const Subject& subject, Findings& findings) {
  const Schedule& schedule = subject.schedule;
  const bool has_backward = subject.has_backward();
  for (Stage stage = 0; stage + 1 < schedule.stage_count(); ++stage) {
    const Rank rank = subject.rank_of(stage);
    if (subject.rank_of(stage + 1) != rank) continue;
    const auto check = [&](std::uint32_t producer, std::uint32_t consumer) {
      const bool together = consumer == producer + 1 && subject.action(rank, producer).fused_with_next();
      if (producer < consumer && !together) return;
      findings.add(rank, consumer,
                   to_text(subject.action(rank, consumer)) + " needs " +
                       to_text(subject.action(rank, producer)) + ", which comes later on this rank");
    };
    for (Microbatch j = 0; j < schedule.microbatches; ++j) {
      const ActionIndex::Entry& here = subject.index->at(stage, j);
      const ActionIndex::Entry& next = subject.index->at(stage + 1, j);
      check(here[Kind::F], next[Kind::F]);
      if (has_backward) check(next.input_grad(), here.input_grad());
    }
  }
}

/// What computes on stage `from` the datum that `action` needs.
Action producer_of(const Subject& subject, Action action, Stage from) {
  const auto j = static_cast<Microbatch>(action.microbatch);
  if (action.kind == Kind::F) return make_action(from, Kind::F, j);
  return make_action(from, subject.index->at(from, j).has(Kind::I) ? Kind::I : Kind::B, j);
}

void check_across_ranks(const Subject& subject, Findings& findings) {
  const Schedule& schedule = subject.schedule;
  Replay replay(schedule, false);
  if (replay.run([](Rank, std::size_t, std::span<const Action>) {})) return;
  for (Rank rank = 0; rank < schedule.rank_count(); ++rank) {
    const std::span<const Action> actions = schedule.ranks[static_cast<std::size_t>(rank)];
    const std::size_t at = replay.position(rank);
    if (at == actions.size()) continue;
    for (std::size_t part = at; part < at + cell_size(actions, at); ++part) {
      const auto [datum, from] = replay.data().missing(actions[part]);
      if (datum == Availability::kNothing) continue;
      const Action missing = producer_of(subject, actions[part], from);
      const Rank owner = subject.rank_of(missing.stage);
      const std::size_t stuck = replay.position(owner);
      std::string message = to_text(actions[part]) + " needs " + to_text(missing);
      if (owner == rank) {
        message += ", which comes later on this rank";
      } else if (stuck < schedule.ranks[static_cast<std::size_t>(owner)].size()) {
        message += ", but rank " + std::to_string(owner) + " is held at step " +
                   std::to_string(step_of(schedule.ranks[static_cast<std::size_t>(owner)], stuck)) + " by " +
                   to_text(subject.action(owner, stuck));
      } else {
        message += ", which never reaches this rank";
      }
      findings.add(rank, part, std::move(message));
    }
  }
}

}  // namespace

void check_dependencies(const Subject& subject, Findings& findings) {
  if (subject.format == Format::Lowered) {
    check_local(subject, findings);
  } else {
    check_across_ranks(subject, findings);
  }
}

}  // namespace pipewright
