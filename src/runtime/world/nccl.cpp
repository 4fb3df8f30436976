#include "runtime/world/nccl.h"

#include <cstdlib>
#include <utility>

#include "pipewright/base/error.h"

#ifdef USE_C10D_NCCL
#include <ATen/cuda/CUDAContext.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "runtime/world/running_system.h"
#endif

namespace pipewright {

#ifdef USE_C10D_NCCL

namespace {

class QuietNccl final : public c10d::ProcessGroupNCCL {
 public:
  QuietNccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
            c10::intrusive_ptr<Options> options)
      : ProcessGroupNCCL(store, rank, size, std::move(options)) {
    asyncErrorHandling_ = c10d::NoHandling;  // it would end the process
  }
};

}  // namespace

std::string nccl_name(c10::Device device) {
  if (!device.is_cuda()) return {};
  const char* const machine = std::getenv("NCCL_HOSTID");
  std::string name = machine ? machine : running_system();
  for (const char byte : at::cuda::getDeviceProperties(device.index())->uuid.bytes) {
    name += "." + std::to_string(static_cast<unsigned char>(byte));
  }
  return name;
}

c10::intrusive_ptr<c10d::Backend> make_nccl_group(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                  int size, std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  options->is_high_priority_stream = true;  // what others wait for goes before what this process computes
  return c10::make_intrusive<QuietNccl>(store, rank, size, std::move(options));
}

#else

std::string nccl_name(c10::Device /*device*/) { return {}; }

c10::intrusive_ptr<c10d::Backend> make_nccl_group(const c10::intrusive_ptr<c10d::Store>& /*store*/,
                                                  int /*rank*/, int /*size*/,
                                                  std::chrono::milliseconds /*timeout*/) {
  throw Error("this library was built without NCCL");
}

#endif

}  // namespace pipewright
