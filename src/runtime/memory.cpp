#include "pipewright/runtime/memory.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <malloc.h>

#include <limits>

namespace pipewright {
namespace {

constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);

/// Null where the device has none, or nothing was ever allocated there.
c10::DeviceAllocator* allocator_of(c10::Device device) {
  if (device.is_cpu()) return nullptr;
  c10::DeviceAllocator* allocator = c10::getDeviceAllocator(device.type());
  return allocator->initialized() ? allocator : nullptr;
}

/// A device without a number is the first.
c10::DeviceIndex index_of(c10::Device device) {
  return device.has_index() ? device.index() : c10::DeviceIndex{0};
}

}  // namespace

void keep_freed_memory() {
#ifdef __GLIBC__
  constexpr int kLargestInHeap = 32 << 20;  // the most that M_MMAP_THRESHOLD takes
  mallopt(M_MMAP_THRESHOLD, kLargestInHeap);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
}

DeviceMemory device_memory(c10::Device device) {
  c10::DeviceAllocator* allocator = allocator_of(device);
  if (!allocator) return {};
  const auto stats = allocator->getDeviceStats(index_of(device));
  return {.peak_allocated = stats.allocated_bytes[kAll].peak,
          .peak_reserved = stats.reserved_bytes[kAll].peak};
}

void reset_peak_memory(c10::Device device) {
  if (c10::DeviceAllocator* allocator = allocator_of(device)) allocator->resetPeakStats(index_of(device));
}

}  // namespace pipewright
