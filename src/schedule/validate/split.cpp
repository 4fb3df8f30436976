// split: a stage's backward of a microbatch is one B, or one I and one W; no
// action stands in the lists twice.

#include "schedule/validate/rules.h"

namespace pipewright {

void check_split(const Subject& subject, Findings& findings) {
  const Schedule& schedule = subject.schedule;
  for (const auto& [rank, position] : subject.index->duplicates()) {
    findings.add(rank, position, to_text(subject.action(rank, position)) + " is there twice");
  }
  const bool has_backward = subject.has_backward();
  for (Stage stage = 0; stage < schedule.stage_count(); ++stage) {
    for (Microbatch j = 0; j < schedule.microbatches; ++j) {
      const ActionIndex::Entry& entry = subject.index->at(stage, j);
      const bool b = entry.has(Kind::B);
      const bool i = entry.has(Kind::I);
      const bool w = entry.has(Kind::W);
      if (entry.has(Kind::F) && b != i && i == w) continue;
      if (entry.has(Kind::F) && !b && !i && !w && !has_backward) continue;
      const auto name = [&](Kind kind) { return to_text(make_action(stage, kind, j)); };
      const Rank rank = subject.rank_of(stage);
      if (!entry.has(Kind::F)) {
        findings.add_absence(rank, name(Kind::F), name(Kind::F) + " is missing");
      } else if (b) {
        findings.add(rank, entry[Kind::B], name(Kind::B) + " together with " + name(i ? Kind::I : Kind::W));
      } else if (i != w) {
        findings.add(rank, entry[i ? Kind::I : Kind::W],
                     name(i ? Kind::I : Kind::W) + " without " + name(i ? Kind::W : Kind::I));
      } else {
        findings.add_absence(rank, name(Kind::B), name(Kind::B) + " is missing");
      }
    }
  }
}

}  // namespace pipewright
