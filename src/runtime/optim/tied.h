#pragma once

#include <string>
#include <vector>

#include "runtime/optim/parameters.h"

namespace pipewright {

/// Groups of parameters, on different stages, that stand for one. The first of each is
/// its owner. Between steps all of a group have the same value and the same gradient.
class TiedParameters {
 public:
  TiedParameters() = default;
  /// Throws ArgumentError for names that are not there and shapes that differ.
  TiedParameters(const std::vector<std::vector<std::string>>& groups, const NamedTensors& parameters);

  /// Gives every parameter its owner's value.
  void share_values() const;

  /// Before a step: gradients from earlier steps stay with the owner alone, so that
  /// the others collect only what this step adds.
  void before_step() const;
  /// After a step: everyone gets the sum.
  void after_step() const;

  /// True for a parameter whose owner is another.
  bool is_copy(const at::Tensor& parameter) const;

 private:
  std::vector<std::vector<at::Tensor>> groups_;
};

}  // namespace pipewright
