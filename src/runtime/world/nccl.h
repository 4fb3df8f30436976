#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace pipewright {

/// What NCCL knows a device by, which no two devices share; empty for those that it cannot use, which are all
/// where libtorch, or this library, was built without NCCL.
std::string nccl_name(c10::Device device);

/// A process group over NCCL, for tensors on CUDA devices, that leaves it to others to do something about
/// failures. REQUIRES: the devices have names.
c10::intrusive_ptr<c10d::Backend> make_nccl_group(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                  int size, std::chrono::milliseconds timeout);

}  // namespace pipewright
