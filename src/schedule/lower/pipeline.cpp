#include "schedule/lower/pipeline.h"

#include <algorithm>
#include <array>

#include "pipewright/base/error.h"
#include "pipewright/schedule/lower.h"
#include "schedule/ir/bubbles.h"
#include "schedule/lower/passes.h"
#include "schedule/validate/rules.h"

namespace pipewright {
namespace {

/// Whether both lists have the same compute actions, fuse marks included, in the same order.
bool same_compute(std::span<const Action> a, std::span<const Action> b) {
  auto i = a.begin();
  auto j = b.begin();
  while (true) {
    while (i != a.end() && j != b.end() && *i == *j) ++i, ++j;
    while (i != a.end() && !is_compute(i->kind)) ++i;
    while (j != b.end() && !is_compute(j->kind)) ++j;
    if (i == a.end() || j == b.end()) return i == a.end() && j == b.end();
    if (*i != *j) return false;
  }
}

void check(const Schedule& schedule, Format format, Scope scope, const std::string& where) {
  const std::vector<Diagnostic> found = validate(schedule, format, scope);
  if (found.empty()) return;
  throw InvalidSchedule("[lower] " + where + ": " + to_text(found.front()) +
                        (found.size() == 1 ? "" : " (and " + std::to_string(found.size() - 1) + " more)"));
}

}  // namespace

Schedule run_passes(Schedule schedule, std::span<const Pass> passes) {
  check(schedule, Format::ComputeOnly, Scope::All, "the schedule to lower");
  for (const Pass& pass : passes) {
    if (!pass.enabled) continue;
    const std::string where = std::string("after ") + pass.name;
    Schedule result = pass.run(schedule);
    // A compute order that is still the same is still valid; only the rest is checked anew.
    if (pass.keeps_compute && !std::ranges::equal(schedule.ranks, result.ranks, same_compute)) {
      throw InvalidSchedule("[lower] " + where + ": the order of compute actions has changed");
    }
    check(result, pass.format_after, pass.keeps_compute ? Scope::AroundCompute : Scope::All, where);
    schedule = std::move(result);
  }
  return schedule;
}

Schedule lower(Schedule schedule, const LowerOptions& options) {
  if (options.max_active_stages < 1) {
    throw ArgumentError("max_active_stages must be at least 1, not " +
                        std::to_string(options.max_active_stages));
  }
  const std::array<Pass, 6> passes = {{
      {"remove_bubbles", true, without_bubbles, Format::ComputeOnly, true},
      {"merge_backward", options.merge_backward, merge_backward, Format::ComputeOnly, false},
      {"add_unshard", true, [&](const Schedule& s) { return add_unshard(s, options.max_active_stages); },
       Format::Annotated, true},
      {"add_reduce_grad", true, add_reduce_grad, Format::Annotated, true},
      {"add_messages", true, add_messages, Format::Lowered, true},
      {"defer_receives", options.defer_receives, defer_receives, Format::Lowered, true},
  }};
  return run_passes(std::move(schedule), passes);
}

}  // namespace pipewright
