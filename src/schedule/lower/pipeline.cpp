#include <array>
#include <functional>

#include "pipewright/base/error.h"
#include "pipewright/schedule/lower.h"
#include "pipewright/schedule/validate.h"
#include "schedule/ir/bubbles.h"
#include "schedule/lower/passes.h"

namespace pipewright {
namespace {

struct Pass {
  const char* name;
  bool enabled;
  std::function<void(Schedule&)> run;
  Format format_after;
};

void check(const Schedule& schedule, Format format, const std::string& where) {
  const std::vector<Diagnostic> found = validate(schedule, format);
  if (found.empty()) return;
  throw InvalidSchedule("[lower] " + where + ": " + to_text(found.front()) +
                        (found.size() == 1 ? "" : " (and " + std::to_string(found.size() - 1) + " more)"));
}

}  // namespace

Schedule lower(Schedule schedule, const LowerOptions& options) {
  if (options.max_active_stages < 1) {
    throw ArgumentError("max_active_stages must be at least 1, not " +
                        std::to_string(options.max_active_stages));
  }
  const std::array<Pass, 6> passes = {{
      {"remove_bubbles", true, remove_bubbles, Format::ComputeOnly},
      {"merge_backward", options.merge_backward, merge_backward, Format::ComputeOnly},
      {"add_unshard", true, [&](Schedule& s) { add_unshard(s, options.max_active_stages); }, Format::Annotated},
      {"add_reduce_grad", true, add_reduce_grad, Format::Annotated},
      {"add_messages", true, add_messages, Format::Lowered},
      {"defer_receives", options.defer_receives, defer_receives, Format::Lowered},
  }};
  check(schedule, Format::ComputeOnly, "the schedule to lower");
  for (const Pass& pass : passes) {
    if (!pass.enabled) continue;
    pass.run(schedule);
    check(schedule, pass.format_after, std::string("after ") + pass.name);
  }
  return schedule;
}

}  // namespace pipewright
