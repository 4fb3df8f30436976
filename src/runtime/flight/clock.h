#pragma once

#include <chrono>

#include "pipewright/flight/record.h"

namespace pipewright {

using Clock = std::chrono::steady_clock;

/// A time of the steady clock as one of the machine's clock, as that stands now.
inline Microseconds wall_clock(Clock::time_point time) {
  const auto ago = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - time);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return (std::chrono::duration_cast<std::chrono::microseconds>(now) - ago).count();
}

}  // namespace pipewright
