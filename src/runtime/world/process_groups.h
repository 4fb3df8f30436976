#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <functional>
#include <thread>
#include <vector>

#include "pipewright/runtime/world.h"

namespace pipewright {

using ProcessGroup = c10::intrusive_ptr<c10d::Backend>;

/// A process group of `size` processes over Gloo, in which this one has a rank.
ProcessGroup make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                             const WorldOptions& options);

/// The same for tensors on a device: over NCCL, where each of the processes brings one of its own.
ProcessGroup make_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, c10::Device device,
                        const WorldOptions& options);

/// What all processes of a group do first, each its part of it.
using FirstOperation = std::function<c10::intrusive_ptr<c10d::Work>(c10d::Backend&)>;

/// Connects the processes of a group. NCCL does that in the first operation, and waits there for the others
/// without end, whatever becomes of them: so it is done on a thread of its own, which stays behind then.
c10::intrusive_ptr<c10::ivalue::Future> connect(const ProcessGroup& group, c10::Device device,
                                                const FirstOperation& first);

/// Ends what NCCL does in these groups on devices, so that those can be waited for: on threads that have done
/// it when they are joined.
[[nodiscard]] std::vector<std::jthread> abort_nccl(const std::vector<ProcessGroup>& groups);

/// Lets a group end with this program: its destructor would wait for what is under way, which
/// somebody who does not come any more can hold up until the time-out.
void abandon(ProcessGroup group);

}  // namespace pipewright
