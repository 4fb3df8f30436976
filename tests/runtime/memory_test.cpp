#include "pipewright/runtime/memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <thread>
#include <vector>

namespace pipewright {
namespace {

/// Pages that the system has given to the calling thread.
long page_faults() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

TEST(FreedMemory, IsThereForTheNextStep) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer has its own allocator";
#endif
  keep_freed_memory();
  long again = 0;
  std::thread([&] {
    const auto step = [] {
      std::vector<at::Tensor> held(16);
      for (at::Tensor& tensor : held) tensor = at::ones({1 << 18});  // 1 MiB
    };
    for (int warm_up = 0; warm_up < 3; ++warm_up) step();
    const long before = page_faults();
    step();
    again = page_faults() - before;
  }).join();
  EXPECT_LT(again, 256);  // of 4096 pages
}

}  // namespace
}  // namespace pipewright
