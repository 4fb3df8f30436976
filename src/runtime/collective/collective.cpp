#include "runtime/collective/collective.h"

#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <optional>
#include <utility>

#include "pipewright/runtime/errors.h"
#include "runtime/transport/channel.h"
#include "runtime/world/endable_waits.h"
#include "runtime/world/network.h"
#include "runtime/world/world_impl.h"

namespace pipewright {
namespace {

ProcessGroup connected_group(World::Impl& world, const std::string& name, const std::vector<int>& processes,
                             c10::Device device) {
  return world.group(name, processes, device, [device](c10d::Backend& group) {
    std::vector<at::Tensor> tensors = {at::zeros({1}, device)};
    return group.allreduce(tensors);
  });
}

}  // namespace

struct Collective::Operation {
  c10::intrusive_ptr<c10d::Work> work;
  std::string what;
};

class Collective::Impl {
 public:
  Impl(World::Impl& world, c10d::Backend& backend, const std::vector<int>& processes,
       std::chrono::milliseconds timeout)
      : world_(world),
        backend_(backend),
        timeout_(timeout),
        among_(processes),
        waits_(std::make_shared<EndableWaits>()) {
    for (const int process : processes) {
      processes_ += (processes_.empty() ? "" : ", ") + std::to_string(process);
    }
  }

  c10d::Backend& backend() const { return backend_; }
  std::chrono::milliseconds timeout() const { return timeout_; }

  /// Starts something unless all is over.
  template <typename Begin>
  Pending start(const std::string& what, Begin begin) {
    if (waits_->ended()) throw Stopped();
    return std::make_shared<const Operation>(Operation{.work = begin(), .what = what});
  }

  void wait(const Operation& operation) {
    const auto future = operation.work->getFuture();
    std::optional<ProcessWaits::Scope> waiting;
    if (!future->completed()) waiting.emplace(world_.waits(), operation.what, among_);
    switch (waits_->wait(future, timeout_)) {
      case EndableWaits::Outcome::Ended: throw Stopped();
      case EndableWaits::Outcome::TimedOut:
        throw TimeoutError("the " + operation.what + " did not come about within " +
                           std::to_string(timeout_.count()) + " ms among processes " + processes_ +
                           ": one of them has not got there");
      case EndableWaits::Outcome::Done: break;
    }
    if (future->hasError()) {
      throw ConnectionError("the " + operation.what + " among processes " + processes_ +
                            " failed: " + connection_reason(future->tryRetrieveErrorMessage()));
    }
    operation.work->wait();  // done already, but for devices whose streams have an order of their own
  }

  void abort() { waits_->end(); }

 private:
  World::Impl& world_;
  c10d::Backend& backend_;
  const std::chrono::milliseconds timeout_;
  const std::vector<int> among_;
  std::string processes_;
  std::shared_ptr<EndableWaits> waits_;
};

Collective::Collective(World& world, const std::string& name, const std::vector<int>& processes,
                       c10::Device device, std::chrono::milliseconds timeout)
    : impl_(std::make_unique<Impl>(world.impl(), *connected_group(world.impl(), name, processes, device),
                                   processes, timeout)) {}
Collective::~Collective() = default;

int Collective::size() const { return impl_->backend().getSize(); }
int Collective::rank() const { return impl_->backend().getRank(); }

Collective::Pending Collective::broadcast(const at::Tensor& tensor, const std::string& what) {
  return impl_->start(what, [&] {
    std::vector<at::Tensor> tensors = {tensor};
    c10d::BroadcastOptions options;
    options.timeout = impl_->timeout();
    return impl_->backend().broadcast(tensors, options);
  });
}

Collective::Pending Collective::all_reduce(const at::Tensor& tensor, const std::string& what) {
  return impl_->start(what, [&] {
    std::vector<at::Tensor> tensors = {tensor};
    c10d::AllreduceOptions options;
    options.timeout = impl_->timeout();
    return impl_->backend().allreduce(tensors, options);
  });
}

Collective::Pending Collective::all_gather(const at::Tensor& whole, const at::Tensor& part,
                                           const std::string& what) {
  return impl_->start(what, [&] {
    at::Tensor output = whole;
    at::Tensor input = part;
    c10d::AllgatherOptions options;
    options.timeout = impl_->timeout();
    return impl_->backend()._allgather_base(output, input, options);
  });
}

Collective::Pending Collective::reduce_scatter(at::Tensor& part, const at::Tensor& whole,
                                               const std::string& what) {
  const std::int64_t length = whole.numel() / size();
  if (impl_->backend().getBackendName() == "gloo") {
    // Its own sums the whole as well, into a copy.
    part = whole.narrow(0, rank() * length, length);
    return all_reduce(whole, what);
  }
  part = whole.new_empty({length});
  return impl_->start(what, [&] {
    at::Tensor input = whole;
    c10d::ReduceScatterOptions options;
    options.timeout = impl_->timeout();
    return impl_->backend()._reduce_scatter_base(part, input, options);
  });
}

void Collective::wait(const Pending& pending) { impl_->wait(*pending); }
void Collective::abort() { impl_->abort(); }

}  // namespace pipewright
