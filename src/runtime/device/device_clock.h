#pragma once

#include <c10/core/Device.h>

#include "runtime/device/streams.h"
#include "runtime/flight/clock.h"

namespace pipewright {

/// Tells when a device has reached a mark, as time since a point in that of the host.
class DeviceClock {
 public:
  /// Before the first mark.
  explicit DeviceClock(c10::Device device);

  /// When everything is done: compares the clocks. The device comes to what it is given only after the host
  /// has given it, and how long after differs from step to step.
  void compare(Clock::time_point start);

  /// REQUIRES: the mark is a timed one.
  double milliseconds(const c10::Event& reached) const;

 private:
  c10::Device device_;
  Mark first_;
  double first_at_ = 0;
};

}  // namespace pipewright
