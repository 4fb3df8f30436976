#include "runtime/world/libtorch.h"

#include <torch/version.h>

#include <cstdlib>
#include <mutex>

namespace pipewright {
namespace {

void set(const char* name, const char* value) { setenv(name, value, /*overwrite=*/0); }

void set_all() {
  // A group of NCCL's that has failed would be held up for a minute, so that files about it could be written;
  // and every second rank 0, which may have stopped, would be asked whether others have failed.
  set("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "1");
  set("TORCH_NCCL_DUMP_ON_TIMEOUT", "0");
  // Before 2.13, two groups that are used first at the same time, as those of two ranks of a process may be,
  // write to its record of operations without a lock. This library keeps a record of its own.
  if (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13) set("TORCH_FR_BUFFER_SIZE", "0");
}

}  // namespace

void prepare_libtorch() {
  static std::once_flag once;
  std::call_once(once, set_all);
}

}  // namespace pipewright
