#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/base/ids.h"
#include "pipewright/runtime/values.h"

namespace pipewright {

/// What one position of a boundary carries.
struct Slot {
  /// A size for each dimension; −1 is any.
  std::vector<std::int64_t> sizes;
  at::ScalarType dtype = at::kFloat;
  /// Anywhere, where not given.
  std::optional<at::Device> device = {};
  /// May be absent in some microbatches.
  bool optional = false;
};
using Boundary = std::vector<Slot>;

/// `float32[-1, 64]`, with the device where there is one: `int64[8] on cuda:0`.
std::string to_text(const Slot& slot);
/// The same for a value; `absent` for an undefined one.
std::string to_text(const at::Tensor& value);

/// Checks the values that enter (`side` "input") or leave ("output") a stage.
/// Throws BoundaryError for the first that differs.
void check_boundary(const Values& values, const Boundary& boundary, Stage stage, const char* side);

}  // namespace pipewright
