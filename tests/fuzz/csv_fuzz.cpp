// Any text: the parsers take or refuse it, and what they take goes through
// everything that promises to cope with any schedule, or with any valid one.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "pipewright/base/error.h"
#include "pipewright/schedule/csv.h"
#include "pipewright/schedule/deadlock.h"
#include "pipewright/schedule/lower.h"
#include "pipewright/schedule/simulate.h"
#include "pipewright/schedule/validate.h"

namespace pipewright {
namespace {

void require(bool holds, const char* what, const std::string& detail = {}) {
  if (holds) return;
  std::fprintf(stderr, "%s: %s\n", what, detail.c_str());
  std::abort();
}

bool is_valid(const Schedule& schedule, Format format) { return validate(schedule, format).empty(); }

void try_cell(std::string_view text) {
  std::vector<Action> cell;
  try {
    parse_cell(text, cell);
  } catch (const ParseError&) {
    require(cell.empty(), "a refused cell leaves actions behind");
    return;
  }
  std::vector<Action> again;
  parse_cell(cell_text(cell), again);
  require(again == cell, "a cell changes when written and read", cell_text(cell));
}

/// REQUIRES: a valid lowered plan.
void try_plan(const Schedule& plan) {
  const DeadlockVerdict verdict = prove_deadlock_free(plan);
  try {
    simulate(plan, uniform_costs(plan.placement));
  } catch (const Error& error) {
    require(!verdict.free(), "a plan proven free of deadlock does not run", error.what());
  }
}

/// REQUIRES: a valid compute-only schedule. Nothing may be thrown.
void try_lower(const Schedule& schedule, const LowerOptions& options) {
  const Schedule plan = lower(schedule, options);
  for (const Diagnostic& found : validate(plan, Format::Lowered)) {
    require(false, "lowering gives an invalid plan", to_text(found));
  }
  const DeadlockVerdict verdict = prove_deadlock_free(plan);
  require(verdict.free(), "lowering gives a plan that deadlocks", to_text(verdict));
  simulate(plan, uniform_costs(plan.placement));
}

void try_schedule(const Schedule& schedule) {
  require(parse_csv(to_csv(schedule)) == schedule, "a schedule changes when written and read",
          to_csv(schedule));
  validate(schedule, Format::Annotated);
  if (is_valid(schedule, Format::ComputeOnly)) {
    simulate(schedule, uniform_costs(schedule.placement));
    try_lower(schedule, {});
    try_lower(schedule, {.max_active_stages = 1, .merge_backward = true, .defer_receives = true});
  }
  if (is_valid(schedule, Format::Lowered)) try_plan(schedule);
}

}  // namespace
}  // namespace pipewright

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace pipewright;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try_cell(text);
  Schedule schedule;
  try {
    schedule = parse_csv(text);
  } catch (const ParseError&) {
    return 0;
  }
  try_schedule(schedule);
  return 0;
}
