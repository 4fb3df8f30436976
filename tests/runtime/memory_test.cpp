#include "pipewright/runtime/memory.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
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
    // How often the heap's free pieces have to be joined first is up to the allocator: a few steps.
    for (int trial = 0; trial < 8; ++trial) {
      const long before = page_faults();
      step();
      again = page_faults() - before;
    }
  }).join();
  EXPECT_LT(again, 2048);  // of 4096 pages, which a step takes each time where freed memory goes back
}

}  // namespace
}  // namespace pipewright
