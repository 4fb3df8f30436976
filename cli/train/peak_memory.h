#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

namespace pipewright::cli {

/// The most memory that was in use at once, in bytes.
struct PeakMemory {
  std::int64_t resident = 0;  ///< Of the process.
  std::int64_t device = 0;    ///< Of tensors on the CUDA device that had most; 0 without any.

  static PeakMemory since_reset(const std::vector<at::Device>& devices);
  /// What was freed goes back to the system first, so that it does not count any more.
  static void reset(const std::vector<at::Device>& devices);

  /// Of the device, where there is one.
  std::int64_t of_tensors_or_process() const { return device > 0 ? device : resident; }
};

}  // namespace pipewright::cli
