// skips: each leads from a stage of the schedule past at least one other to a
// later one, and they are listed in ascending order; every message beyond the
// neighbour stage takes one of them. In a lowered schedule those between ranks
// have one message of each kind for each microbatch.
//
// Like the rule on counts, this one runs before the index exists and compares
// totals. What the index finds with their help is left to other rules.

#include <array>
#include <utility>

#include "schedule/ir/edges.h"
#include "schedule/validate/rules.h"

namespace pipewright {
namespace {

std::string skip_text(const Skip& skip) {
  return "the skip from stage " + std::to_string(skip.from) + " to " + std::to_string(skip.to);
}

void check_list(const Subject& subject, Findings& findings) {
  const Schedule& schedule = subject.schedule;
  for (std::size_t i = 0; i < schedule.skips.size(); ++i) {
    const Skip& skip = schedule.skips[i];
    if (skip.from < 0 || skip.to >= schedule.stage_count()) {
      findings.add_absence(-1, "", skip_text(skip) + " names a stage that is not there");
    } else if (skip.from + 1 >= skip.to) {
      findings.add_absence(-1, "", skip_text(skip) + " skips no stage");
    } else if (skip.to - skip.from > kMaxSkipDistance) {
      findings.add_absence(
          -1, "", skip_text(skip) + " is longer than " + std::to_string(kMaxSkipDistance) + " stages");
    } else if (i > 0 && schedule.skips[i - 1] >= skip) {
      findings.add_absence(-1, "", skip_text(skip) + " is listed twice or out of order");
    }
  }
}

constexpr std::array kMessages = {Kind::SendF, Kind::RecvF, Kind::SendB, Kind::RecvB};

/// REQUIRES: `check_list` found nothing.
void check_skip_messages(const Subject& subject, Findings& findings) {
  const Schedule& schedule = subject.schedule;
  const Edges edges(schedule);
  const std::size_t first = schedule.placement.size();
  std::vector<std::array<std::int64_t, kMessages.size()>> counts(schedule.skips.size());
  for (Rank rank = 0; rank < schedule.rank_count(); ++rank) {
    const auto& actions = schedule.ranks[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (actions[i].skipped() == 0) continue;
      const std::size_t edge = is_message(actions[i].kind) ? edges.of(actions[i]) : edges.size();
      if (edge == edges.size()) {
        findings.add(rank, i, to_text(actions[i]) + " takes a skip that is not there");
      } else {
        const auto kind = static_cast<std::size_t>(actions[i].kind) - static_cast<std::size_t>(Kind::SendF);
        ++counts[edge - first][kind];
      }
    }
  }
  for (std::size_t i = 0; i < schedule.skips.size() && !findings.full(); ++i) {
    const auto [from, to] = schedule.skips[i];
    const bool crosses = subject.rank_of(from) != subject.rank_of(to);
    for (std::size_t kind = 0; kind < kMessages.size(); ++kind) {
      const bool forward = kMessages[kind] == Kind::SendF || kMessages[kind] == Kind::RecvF;
      const Microbatch wanted = crosses && (forward || subject.has_backward()) ? schedule.microbatches : 0;
      if (counts[i][kind] == wanted) continue;
      const bool at_from = kMessages[kind] == Kind::SendF || kMessages[kind] == Kind::RecvB;
      findings.add_absence(subject.rank_of(at_from ? from : to), "",
                           skip_text(schedule.skips[i]) + " has " + std::to_string(counts[i][kind]) + " " +
                               std::string(to_text(kMessages[kind])) + ", and needs " +
                               std::to_string(wanted));
    }
  }
}

}  // namespace

void check_skips(const Subject& subject, Findings& findings) {
  check_list(subject, findings);
  if (!findings.empty()) return;
  if (subject.survey.has_skipping || (subject.format == Format::Lowered && !subject.schedule.skips.empty())) {
    check_skip_messages(subject, findings);
  }
}

}  // namespace pipewright
