#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <vector>

#include "pipewright/runtime/boundary.h"

namespace pipewright {

/// Checks what enters or leaves a stage, microbatch by microbatch: against what the
/// user declared, or against what the first microbatch of the step brought.
class BoundaryCheck {
 public:
  BoundaryCheck(Stage stage, const char* side) : stage_(stage), side_(side) {}

  void check(const Values& values, const std::optional<Boundary>& declared);
  /// A new step may bring something else.
  void forget() { seen_.reset(); }

 private:
  struct Seen {
    at::ScalarType dtype;
    at::Device device;
  };

  Stage stage_;
  const char* side_;
  std::optional<std::vector<std::optional<Seen>>> seen_;
};

}  // namespace pipewright
