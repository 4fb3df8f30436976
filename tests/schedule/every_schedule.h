#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>

#include "pipewright/schedule/generate.h"

namespace pipewright {

inline void PrintTo(const ScheduleInfo& info, std::ostream* out) { *out << info.name; }

/// For INSTANTIATE_TEST_SUITE_P: every known schedule, and its name without dashes.
inline auto every_schedule() { return testing::ValuesIn(known_schedules().begin(), known_schedules().end()); }
inline std::string schedule_test_name(const testing::TestParamInfo<ScheduleInfo>& parameter) {
  std::string name(parameter.param.name);
  std::erase(name, '-');
  return name;
}

}  // namespace pipewright
