#pragma once

#include <string>
#include <vector>

#include "pipewright/runtime/world.h"
#include "runtime/optim/parameters.h"

namespace pipewright {

/// Groups of parameters, on different stages, that stand for one. The first of each is
/// its owner. Between steps all of a group have the same value and the same gradient.
/// Where a group is spread over several processes, they all call these functions at the same point.
class TiedParameters {
 public:
  TiedParameters() = default;
  /// `world`: null, or the processes among which the stages are; it outlives this object.
  /// Throws ArgumentError for names that are not there and shapes that differ.
  TiedParameters(const std::vector<std::vector<std::string>>& groups, const NamedTensors& parameters,
                 World* world);

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
  struct Group {
    std::vector<at::Tensor> local;  // those of this process
    bool owns = false;              // the first of them is the owner
    std::vector<int> processes;     // where it has members, if that is more than one
    int owner = 0;                  // the owner's place among them

    auto copies() const;
  };

  World* world_ = nullptr;
  std::vector<Group> groups_;  // those with members in this process
};

}  // namespace pipewright
