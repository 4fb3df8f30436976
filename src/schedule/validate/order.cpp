// order: on each stage, for each microbatch, F before B or I, and I before W;
// the parts of an OVERLAP_F_B are of different microbatches or stages.

#include "schedule/validate/rules.h"

namespace pipewright {

void check_order(const Subject& subject, Findings& findings) {
  const Schedule& schedule = subject.schedule;
  if (!subject.has_backward()) return;
  for (Stage stage = 0; stage < schedule.stage_count(); ++stage) {
    const Rank rank = subject.rank_of(stage);
    for (Microbatch j = 0; j < schedule.microbatches; ++j) {
      const ActionIndex::Entry& entry = subject.index->at(stage, j);
      const std::uint32_t forward = entry[Kind::F];
      const std::uint32_t input = entry.input_grad();
      const std::uint32_t weight = entry.weight_grad();
      if (forward == ActionIndex::kAbsent || input == ActionIndex::kAbsent ||
          weight == ActionIndex::kAbsent) {
        continue;  // the split rule has reported it
      }
      const auto name = [&](std::uint32_t position) { return to_text(subject.action(rank, position)); };
      if (input < forward) {
        findings.add(rank, input, name(input) + " before " + name(forward));
      } else if (input == forward + 1 && subject.action(rank, forward).fused_with_next()) {
        findings.add(rank, input, name(input) + " at the same time as " + name(forward));
      }
      if (weight < input) findings.add(rank, weight, name(weight) + " before " + name(input));
    }
  }
}

}  // namespace pipewright
