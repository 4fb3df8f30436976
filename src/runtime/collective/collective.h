#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "pipewright/runtime/world.h"

namespace pipewright {

/// What some processes of a world do together, each starting the same things in the same order.
/// One thread at a time starts something; any may wait, and `abort` may come from any.
class Collective {
 public:
  /// `processes`: this one among them; all of them make the object at the same point. `name` is its own.
  /// `device`: where the tensors are.
  Collective(World& world, const std::string& name, const std::vector<int>& processes, c10::Device device,
             std::chrono::milliseconds timeout);
  ~Collective();
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;

  int size() const;
  /// This process's place among them.
  int rank() const;

  /// Something under way, with the tensors that it works on.
  struct Operation;
  using Pending = std::shared_ptr<const Operation>;

  // `what`: named in an error when it does not come about.

  /// The values of the first process, in all of them.
  Pending broadcast(const at::Tensor& tensor, const std::string& what);
  /// Sums, in place.
  Pending all_reduce(const at::Tensor& tensor, const std::string& what);
  /// `whole` becomes the `part` of every process, in their order.
  Pending all_gather(const at::Tensor& whole, const at::Tensor& part, const std::string& what);
  /// `part` becomes this process's part of the sum over all; `whole` is used up.
  Pending reduce_scatter(at::Tensor& part, const at::Tensor& whole, const std::string& what);

  /// Throws TimeoutError after the time-out, Error for what went wrong, Stopped after an abort.
  void wait(const Pending& pending);

  /// Ends all waits, for good. What is under way ends with the world.
  void abort();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pipewright
