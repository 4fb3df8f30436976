#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/collective/stage_replicas.h"

namespace pipewright {

/// The parameters of a stage's local replicas, in the same order in each.
class StageParameters {
 public:
  /// Throws ArgumentError where the replicas are not alike.
  explicit StageParameters(const StageMembers& members);

  std::size_t count() const { return names_.size(); }
  const std::string& name(std::size_t at) const { return names_[at]; }
  /// The parameter of the first replica, whose gradient is the one that users see.
  const at::Tensor& first(std::size_t at) const { return members_.front()[at]; }
  const std::vector<std::vector<at::Tensor>>& members() const { return members_; }
  std::size_t member_count() const { return members_.size(); }

  /// Makes every replica's parameter a view of the same memory.
  void share(std::size_t at, const at::Tensor& values) const;

  void drop_gradients() const;
  /// `out`, flat, becomes the sum of the replicas' gradients, which they lose; zeros where there are none.
  /// Whether there was one.
  bool take_gradients(std::size_t at, const at::Tensor& out) const;

 private:
  std::vector<std::string> names_;
  std::vector<std::vector<at::Tensor>> members_;
};

/// Gives the buffers of all replicas the values of the first.
void share_buffers(const StageMembers& members, ReplicaLinks& links);

/// Tensors one after the other in flat memory, each where any kernel likes it to start.
class FlatLayout {
 public:
  /// Where the next tensor starts.
  std::int64_t add(const at::Tensor& tensor);
  std::int64_t length() const { return length_; }

 private:
  std::int64_t length_ = 0;
};

}  // namespace pipewright
