#include <iostream>

#include "pipewright/schedule/deadlock.h"
#include "pipewright/schedule/generate.h"
#include "pipewright/schedule/lower.h"
#include "pipewright/schedule/simulate.h"

int main() {
  auto schedule = pipewright::make_schedule({.name = "ZBVZeroBubble", .ranks = 4, .microbatches = 8});
  auto plan = pipewright::lower(schedule);
  auto costs = pipewright::uniform_costs(plan.placement);
  auto metrics = pipewright::measure(pipewright::simulate(plan, costs), costs);
  std::cout << plan.action_count() << " actions, makespan " << metrics.makespan << ", "
            << pipewright::to_text(pipewright::prove_deadlock_free(plan)) << '\n';
  return pipewright::prove_deadlock_free(plan).free() && metrics.makespan == 25.5 ? 0 : 1;
}
