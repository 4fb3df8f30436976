#include "runtime/device/cuda_graph.h"

#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Generator.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/StreamGuard.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <mutex>

namespace pipewright {
namespace {

/// What CUDAGraph leaves set up where the capture was invalid: its filters refer to the graph itself.
template <typename HostAllocator>
void stop_allocating_to(c10::DeviceIndex device, const at::cuda::MempoolId_t& pool, HostAllocator* on_host) {
  c10::cuda::CUDACachingAllocator::endAllocateToPool(device, pool);
  c10::cuda::CUDACachingAllocator::releasePool(device, pool);
  // Not in every libtorch.
  if constexpr (requires { on_host->end_allocate_to_pool(pool); }) on_host->end_allocate_to_pool(pool);
  if constexpr (requires { on_host->release_pool(pool); }) on_host->release_pool(pool);
}

/// The device's generator may still take itself for one that is being recorded; a copy of it does not.
void renew_generator(c10::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  generator.graphsafe_set_state(generator.clone().graphsafe_get_state());
}

}  // namespace

class CudaGraph::Impl {
 public:
  explicit Impl(c10::Stream stream) : stream_(stream) {}

  void capture(const std::function<void()>& work) {
    const c10::StreamGuard guard(stream_);
    // Other threads may go on using the device: only what this one does is recorded, and what is computed for
    // it on autograd's.
    graph_.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      try {
        end();
      } catch (const c10::Error&) {  // invalid, for the same reason
      }
      throw;
    }
    end();
  }

  void replay() {
    const c10::StreamGuard guard(stream_);
    graph_.replay();
  }

 private:
  void end() {
    try {
      graph_.capture_end();
    } catch (const c10::Error&) {
      stop_allocating_to(stream_.device_index(), pool_, at::getHostAllocator(at::kCUDA));
      renew_generator(stream_.device());
      throw;
    }
  }

  const c10::Stream stream_;
  const at::cuda::MempoolId_t pool_ = at::cuda::graph_pool_handle();
  at::cuda::CUDAGraph graph_;
};

bool CudaGraph::is_supported() { return true; }

CudaGraph::CudaGraph(c10::Stream stream) : impl_(std::make_unique<Impl>(stream)) {}
CudaGraph::~CudaGraph() = default;
void CudaGraph::capture(const std::function<void()>& work) { impl_->capture(work); }
void CudaGraph::replay() { impl_->replay(); }

}  // namespace pipewright
