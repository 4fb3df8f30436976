#pragma once

#include <c10/core/Device.h>

#include <optional>

#include "pipewright/runtime/values.h"
#include "runtime/device/streams.h"

namespace pipewright {

/// The way of values from one rank to another in this process. The ranks compute on streams of their own,
/// perhaps on different devices.
class DeviceLink {
 public:
  DeviceLink(c10::Device from, c10::Device to);

  /// On the giver's thread: what is on his device is copied to the taker's, beside what both compute. The
  /// mark is reached when the values are there; null where they are at once.
  Mark give(Values& values, Timed timed);

  /// On the taker's thread: what he computes from now on waits for the values.
  void take(const Values& values, const Mark& given) const;

 private:
  void copy(Values& values) const;

  c10::Device from_;
  c10::Device to_;
  /// For copies.
  std::optional<c10::Stream> leaves_;
  std::optional<c10::Stream> arrives_;
};

}  // namespace pipewright
