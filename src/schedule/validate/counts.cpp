// counts: every stage runs the forward of every microbatch once, and either no
// stage runs any backward or every stage completes both gradients of each.
//
// This rule alone runs before the index exists. It compares totals, and only
// where they are off does it sort to find what is missing or there twice: an
// index made for a file that names stage 60000 and microbatch 16000000 in two
// cells would not fit in memory.

#include <algorithm>
#include <functional>

#include "schedule/validate/rules.h"

namespace pipewright {
namespace {

std::uint64_t key(Action action) { return (std::uint64_t{action.stage} << 32U) | action.microbatch; }

/// Reports what is missing or doubled among the actions that `wanted` picks;
/// `kinds` says in words what they are.
void compare(const Subject& subject, const std::function<bool(Kind)>& wanted, const char* kinds,
             Findings& findings) {
  const Schedule& schedule = subject.schedule;
  struct Place {
    std::uint64_t key;
    Rank rank;
    std::uint32_t position;
  };
  std::vector<Place> places;
  for (Rank rank = 0; rank < schedule.rank_count(); ++rank) {
    const auto& actions = schedule.ranks[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (!wanted(actions[i].kind)) continue;
      places.push_back({key(actions[i]), rank, static_cast<std::uint32_t>(i)});
    }
  }
  std::ranges::sort(places, [](const Place& a, const Place& b) {
    return a.key != b.key ? a.key < b.key : a.position < b.position;
  });
  std::size_t next = 0;
  for (Stage stage = 0; stage < schedule.stage_count() && !findings.full(); ++stage) {
    for (Microbatch j = 0; j < schedule.microbatches && !findings.full(); ++j) {
      const std::uint64_t expected = key(make_action(stage, Kind::F, j));
      if (next == places.size() || places[next].key != expected) {
        findings.add_absence(
            subject.rank_of(stage), "",
            "stage " + std::to_string(stage) + " has no " + kinds + " of microbatch " + std::to_string(j));
        continue;
      }
      for (++next; next < places.size() && places[next].key == expected; ++next) {
        const auto& [_, rank, position] = places[next];
        findings.add(rank, position,
                     to_text(subject.action(rank, position)) + " is a second " + kinds + " of microbatch " +
                         std::to_string(j) + " on stage " + std::to_string(stage));
      }
    }
  }
}

}  // namespace

void check_counts(const Subject& subject, Findings& findings) {
  const Schedule& schedule = subject.schedule;
  const auto expected =
      static_cast<std::size_t>(schedule.stage_count()) * static_cast<std::size_t>(schedule.microbatches);
  // Totals that fit leave only doubles that hide an absence; the index finds those.
  if (subject.count(Kind::F) != expected) {
    compare(subject, [](Kind kind) { return kind == Kind::F; }, "forward (F)", findings);
    return;
  }
  if (!subject.has_backward()) return;
  if (subject.count(Kind::B) + subject.count(Kind::I) != expected) {
    compare(subject, gives_input_grad, "backward (B or I)", findings);
  }
  if (subject.count(Kind::B) + subject.count(Kind::W) != expected) {
    compare(subject, gives_weight_grad, "weight gradient (B or W)", findings);
  }
}

}  // namespace pipewright
