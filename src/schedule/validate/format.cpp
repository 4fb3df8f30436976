// format: a compute-only schedule holds compute actions and bubbles; the other
// formats hold no bubbles; only a lowered one holds messages. A fuse mark joins
// one F with one B or I.

#include "schedule/validate/rules.h"

namespace pipewright {
namespace {

bool is_overlap(std::span<const Action> cell) {
  if (cell.size() != 2 || cell[1].fused_with_next) return false;
  return (cell[0].kind == Kind::F && gives_input_grad(cell[1].kind)) ||
         (gives_input_grad(cell[0].kind) && cell[1].kind == Kind::F);
}

}  // namespace

void check_format(const Subject& subject, Findings& findings) {
  const bool compute_only = subject.format == Format::ComputeOnly;
  const bool messages = subject.format == Format::Lowered;
  for (Rank rank = 0; rank < subject.schedule.rank_count(); ++rank) {
    const std::span<const Action> actions = subject.schedule.ranks[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const Action action = actions[i];
      if (action.fused_with_next) {
        const auto cell = actions.subspan(i, cell_size(actions, i));
        if (!is_overlap(cell)) {
          findings.add(rank, i, "an OVERLAP_F_B has one F and one B or I, not " + cell_text(cell));
        }
        i += cell.size() - 1;
      } else if (!compute_only && action.kind == Kind::Bubble) {
        findings.add(rank, i, "an empty cell in a lowered schedule");
      } else if (compute_only && action.kind > Kind::W) {
        findings.add(rank, i, to_text(action) + " in a compute-only schedule (is it lowered?)");
      } else if (!messages && (is_send(action.kind) || is_receive(action.kind))) {
        findings.add(rank, i, to_text(action) + " before messages are placed");
      }
    }
  }
}

}  // namespace pipewright
