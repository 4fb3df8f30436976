// format: a compute-only schedule holds compute actions and bubbles; the other
// formats hold no bubbles; only a lowered one holds messages. A fuse mark joins
// one F with one B or I.

#include "schedule/validate/rules.h"

namespace pipewright {
namespace {

bool is_overlap(std::span<const Action> cell) {
  if (cell.size() != 2 || cell[1].fused_with_next()) return false;
  return (cell[0].kind == Kind::F && gives_input_grad(cell[1].kind)) ||
         (gives_input_grad(cell[0].kind) && cell[1].kind == Kind::F);
}

bool is_allowed(Kind kind, Format format) {
  if (is_compute(kind)) return true;
  if (kind == Kind::Bubble) return format == Format::ComputeOnly;
  return is_message(kind) ? format == Format::Lowered : format != Format::ComputeOnly;
}

std::string why_not(Action action, Format format) {
  if (action.kind == Kind::Bubble) return "an empty cell in a lowered schedule";
  if (format == Format::ComputeOnly) return to_text(action) + " in a compute-only schedule (is it lowered?)";
  return to_text(action) + " before messages are placed";
}

void check_kinds(const Subject& subject, Rank rank, std::span<const Action> actions, Findings& findings) {
  for (std::size_t at = 0; at < actions.size(); ++at) {
    if (is_allowed(actions[at].kind, subject.format)) continue;
    findings.add(rank, at, why_not(actions[at], subject.format));
  }
}

void check_overlaps(Rank rank, std::span<const Action> actions, Findings& findings) {
  for (std::size_t at = 0; at < actions.size(); ++at) {
    if (!actions[at].fused_with_next()) continue;
    const auto cell = actions.subspan(at, cell_size(actions, at));
    if (!is_overlap(cell)) {
      findings.add(rank, at, "an OVERLAP_F_B has one F and one B or I, not " + cell_text(cell));
    }
    at += cell.size() - 1;
  }
}

}  // namespace

void check_format(const Subject& subject, Findings& findings) {
  bool has_foreign_kind = false;
  for (std::size_t kind = 0; kind < subject.survey.kinds.size(); ++kind) {
    has_foreign_kind |=
        subject.survey.kinds[kind] > 0 && !is_allowed(static_cast<Kind>(kind), subject.format);
  }
  for (Rank rank = 0; rank < subject.schedule.rank_count(); ++rank) {
    const std::span<const Action> actions = subject.schedule.ranks[static_cast<std::size_t>(rank)];
    if (has_foreign_kind) check_kinds(subject, rank, actions, findings);
    if (subject.survey.has_fused && subject.scope == Scope::All) check_overlaps(rank, actions, findings);
  }
}

}  // namespace pipewright
