#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pipewright/runtime/values.h"
#include "runtime/executor/program.h"

namespace pipewright {

// What goes from a stage to those before and behind it.

/// What goes a way: some of the values, or all. Absent where there is no such value.
Values values_for(const Way& way, const Values& values);

/// What a stage hands on: to train, detached from its graph and marked where a gradient has to come back.
Values handed_on(const Way& way, const Values& outputs, bool train);

/// Every output that a later stage takes is there. Throws BoundaryError.
void check_taken_outputs(Stage stage, const StageWays& ways, const Values& outputs);

/// Sees to it that a stage does not change values that later ones take, too: in this process they would get
/// what it has made of them, from another process what they were.
class SharedInputs {
 public:
  SharedInputs(Stage stage, const std::vector<std::size_t>& slots, const Values& inputs);

  /// Throws BoundaryError.
  void check_unchanged() const;

 private:
  struct Kept {
    std::size_t slot;
    at::Tensor value;
    std::int64_t version;
  };
  Stage stage_;
  std::vector<Kept> kept_;
};

}  // namespace pipewright
