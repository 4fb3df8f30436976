#include "schedule/generate/generators.h"

#include <algorithm>
#include <utility>

namespace pipewright {

Schedule empty_schedule(const Sizes& sizes, Placement placement) {
  Schedule schedule;
  schedule.ranks.resize(static_cast<std::size_t>(sizes.ranks));
  schedule.placement = std::move(placement);
  schedule.microbatches = sizes.microbatches;
  return schedule;
}

void keep_microbatches(Schedule& schedule, Microbatch microbatches) {
  const auto is_dropped = [microbatches](Action action) {
    return std::cmp_greater_equal(action.microbatch, microbatches);
  };
  for (auto& actions : schedule.ranks) {
    for (std::size_t i = 0; i + 1 < actions.size(); ++i) {
      if (is_dropped(actions[i]) || is_dropped(actions[i + 1])) actions[i].link = 0;
    }
    std::erase_if(actions, is_dropped);
  }
  schedule.microbatches = microbatches;
}

}  // namespace pipewright
