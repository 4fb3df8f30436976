#pragma once

#include <cstddef>
#include <vector>

#include "pipewright/schedule/schedule.h"

namespace pipewright {

/// A cell of a rank's list: its first action, and how many it has.
struct Turn {
  Rank rank;
  std::size_t at;
  std::size_t size;
};

/// All cells of a plan in an order in which one thread can run them: each rank's as they are in its list, and
/// no message is received before it was sent. Later ranks come first where there is a choice, so that what
/// was computed is soon used.
/// REQUIRES: the plan is proven free of deadlock.
std::vector<Turn> serial_order(const Schedule& plan);

}  // namespace pipewright
