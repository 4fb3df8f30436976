#pragma once

#include <memory>
#include <string>
#include <vector>

#include "pipewright/runtime/world.h"
#include "runtime/collective/collective.h"
#include "runtime/optim/parameters.h"

namespace pipewright {

/// Groups of parameters, on different stages, that stand for one. The first of each is
/// its owner. Between steps all of a group have the same value and the same gradient.
/// Where a group is spread over several processes, they all call these functions at the same point.
class TiedParameters {
 public:
  TiedParameters() = default;
  /// `options`: names the groups; its world, null or the processes among which the stages are, outlives
  /// this object. Throws ArgumentError for names that are not there and shapes that differ.
  TiedParameters(const PipelineOptions& options, const std::vector<LocalParameter>& parameters);

  /// Gives every parameter its owner's value.
  void share_values() const;

  /// Before a step: gradients from earlier steps stay with the owner alone, so that
  /// the others collect only what this step adds.
  void before_step() const;
  /// After a step: everyone gets the sum.
  void after_step() const;

  /// Makes every wait throw Stopped. From any thread.
  void abort() const;

  /// Whether there are none in this process.
  bool empty() const { return groups_.empty(); }
  /// True for a parameter whose owner is another.
  bool is_copy(const std::string& name) const;

 private:
  struct Group {
    std::vector<std::string> names;
    std::vector<LocalParameter> local;  // what this process has of them
    /// With the other processes that have something of it; null where there are none.
    std::shared_ptr<Collective> others;

    bool owns(const LocalParameter& part) const { return part.name == names.front(); }
    bool is_whole() const;
    at::Tensor sum_of_gradients() const;
  };

  std::vector<Group> groups_;  // those with members in this process
};

}  // namespace pipewright
