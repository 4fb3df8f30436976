#include "runtime/device/device_clock.h"

#include <chrono>

namespace pipewright {

DeviceClock::DeviceClock(c10::Device device) : device_(device), first_(mark(device, Timed::Yes)) {}

void DeviceClock::compare(Clock::time_point start) {
  wait_until_done(device_);
  const Mark last = mark(device_, Timed::Yes);
  wait_until_done(device_);
  const std::chrono::duration<double, std::milli> now = Clock::now() - start;
  first_at_ = now.count() - milliseconds_between(*first_, *last);
}

double DeviceClock::milliseconds(const c10::Event& reached) const {
  return first_at_ + milliseconds_between(*first_, reached);
}

}  // namespace pipewright
