#include "pipewright/runtime/memory.h"

#include <malloc.h>

#include <limits>

namespace pipewright {

void keep_freed_memory() {
#ifdef __GLIBC__
  constexpr int kLargestInHeap = 32 << 20;  // the most that M_MMAP_THRESHOLD takes
  mallopt(M_MMAP_THRESHOLD, kLargestInHeap);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
}

}  // namespace pipewright
