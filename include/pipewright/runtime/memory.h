#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace pipewright {

/// Lets the C library keep the memory of freed tensors for the next ones, in the whole process.
/// Without it, what a step frees goes back to the system, and the next step gets it
/// again page by page, which costs small models several percent of their time. Meant for programs
/// that do little else than train; does nothing where the C library has no such setting.
void keep_freed_memory();

/// What libtorch's allocator has on a device, in bytes.
struct DeviceMemory {
  /// In tensors; the most since the last reset.
  std::int64_t peak_allocated = 0;
  /// Taken from the device, with what is kept for later tensors; likewise the most.
  std::int64_t peak_reserved = 0;
};
/// All zero for the CPU, which has no such allocator.
DeviceMemory device_memory(c10::Device device);
void reset_peak_memory(c10::Device device);

}  // namespace pipewright
