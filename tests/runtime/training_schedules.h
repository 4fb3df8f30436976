#pragma once

#include <algorithm>
#include <vector>

#include "schedule/every_schedule.h"

namespace pipewright {

inline bool trains(const Schedule& schedule) {
  return std::any_of(schedule.ranks.begin(), schedule.ranks.end(), [](const auto& actions) {
    return std::any_of(actions.begin(), actions.end(), [](Action a) { return gives_input_grad(a.kind); });
  });
}

/// Every known schedule that has backwards.
inline std::vector<ScheduleInfo> training_schedules() {
  std::vector<ScheduleInfo> all;
  for (const ScheduleInfo& info : known_schedules()) {
    if (trains(make_schedule({.name = std::string(info.name)}))) all.push_back(info);
  }
  return all;
}

/// The schedule for so many ranks and microbatches, with its own number of stages.
inline Schedule make_schedule(const ScheduleInfo& info, Rank ranks, Microbatch microbatches) {
  return make_schedule({.name = std::string(info.name), .ranks = ranks, .microbatches = microbatches});
}

}  // namespace pipewright
