#include "train/peak_memory.h"

#include <malloc.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "pipewright/runtime/memory.h"

namespace pipewright::cli {
namespace {

/// VmHWM and not getrusage: that one also counts what the process was before it became this program.
std::int64_t peak_resident() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::int64_t kilobytes = 0;
    if (word == "VmHWM:" && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

}  // namespace

PeakMemory PeakMemory::since_reset(const std::vector<at::Device>& devices) {
  PeakMemory peak{.resident = peak_resident()};
  for (const at::Device device : devices) {
    peak.device = std::max(peak.device, device_memory(device).peak_allocated);
  }
  return peak;
}

void PeakMemory::reset(const std::vector<at::Device>& devices) {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
  std::ofstream("/proc/self/clear_refs") << 5;  // sets VmHWM to what is resident now
  for (const at::Device device : devices) reset_peak_memory(device);
}

}  // namespace pipewright::cli
