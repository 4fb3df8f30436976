#include "runtime/world/nccl.h"

#include <cstdlib>
#include <utility>

#include "pipewright/base/error.h"

#ifdef USE_C10D_NCCL
#include <ATen/cuda/CUDAContext.h>
#include <torch/cuda.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
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

bool has_nccl() { return true; }

void hurry_nccl() { setenv("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "1", /*overwrite=*/0); }

std::vector<std::string> visible_devices() {
  std::vector<std::string> names;
  for (int at = 0; at < static_cast<int>(torch::cuda::device_count()); ++at) {
    std::string name;
    for (const char byte : at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(at))->uuid.bytes) {
      name += std::to_string(static_cast<unsigned char>(byte)) + ".";
    }
    names.push_back(std::move(name));
  }
  return names;
}

c10::intrusive_ptr<c10d::Backend> make_nccl_group(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                  int size, std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  options->is_high_priority_stream = true;  // what others wait for goes before what this process computes
  return c10::make_intrusive<QuietNccl>(store, rank, size, std::move(options));
}

#else

bool has_nccl() { return false; }

void hurry_nccl() {}

std::vector<std::string> visible_devices() { return {}; }

c10::intrusive_ptr<c10d::Backend> make_nccl_group(const c10::intrusive_ptr<c10d::Store>& /*store*/,
                                                  int /*rank*/, int /*size*/,
                                                  std::chrono::milliseconds /*timeout*/) {
  throw Error("this library was built without NCCL");
}

#endif

}  // namespace pipewright
