#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

namespace pipewright {

/// False where libtorch, or this library, was built without NCCL.
bool has_nccl();

/// A process group over NCCL, for tensors on CUDA devices. REQUIRES: has_nccl().
c10::intrusive_ptr<c10d::Backend> make_nccl_group(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                  int size, std::chrono::milliseconds timeout);

}  // namespace pipewright
