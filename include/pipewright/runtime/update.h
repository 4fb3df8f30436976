#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace pipewright {

/// What is done to parameters when a step has their gradients, in two parts, so that a CUDA graph can have
/// the second.
class Update {
 public:
  virtual ~Update() = default;

  /// On the host, once for every step that changes parameters. Those that take part have gradients by then,
  /// though their numbers may still be to come.
  virtual void prepare() = 0;

  /// Launches what changes the parameters, and does nothing else. Recorded, it is done again in later steps
  /// without being called. `not_finite`: a float32 on the device; where that is 1, nothing is to change.
  virtual void apply(const std::optional<at::Tensor>& not_finite) = 0;

  /// After both, where nothing was changed for that: takes back what prepare() has done.
  virtual void revert() = 0;

  /// All that apply() reads on the host, and where the memory lies that it uses besides parameters and
  /// gradients. A recording is good for as long as these numbers are the same.
  virtual std::vector<std::int64_t> fixed() const = 0;
};

}  // namespace pipewright
