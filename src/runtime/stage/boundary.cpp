#include "pipewright/runtime/boundary.h"

#include <c10/core/DeviceType.h>

#include <string>
#include <string_view>

#include "pipewright/runtime/errors.h"
#include "runtime/stage/boundary_check.h"

namespace pipewright {
namespace {

/// `float32`, as users of torch write it.
std::string dtype_text(at::ScalarType dtype) { return std::string(c10::getDtypeNames(dtype).first); }

template <typename Sizes>
std::string type_text(at::ScalarType dtype, const Sizes& sizes) {
  std::string text = dtype_text(dtype) + "[";
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
    text += (dim ? ", " : "") + std::to_string(sizes[dim]);
  }
  return text + "]";
}

bool fits(const at::Tensor& value, const Slot& slot) {
  if (!value.defined()) return slot.optional;
  if (value.scalar_type() != slot.dtype) return false;
  if (slot.device && value.device() != *slot.device) return false;
  const at::IntArrayRef sizes = value.sizes();
  if (sizes.size() != slot.sizes.size()) return false;
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
    if (slot.sizes[dim] != -1 && slot.sizes[dim] != sizes[dim]) return false;
  }
  return true;
}

std::string place(Stage stage, const char* side, std::size_t slot) {
  return "stage " + std::to_string(stage) + ", " + side + " slot " + std::to_string(slot);
}

void check_count(std::size_t expected, std::size_t got, Stage stage, const char* side) {
  if (expected == got) return;
  throw BoundaryError("stage " + std::to_string(stage) + ", " + side + "s: expected " +
                      std::to_string(expected) + " values, got " + std::to_string(got));
}

}  // namespace

std::string to_text(const Slot& slot) {
  return (slot.optional ? "optional " : "") + type_text(slot.dtype, slot.sizes) +
         (slot.device ? " on " + slot.device->str() : "");
}

std::string to_text(const at::Tensor& value) {
  if (!value.defined()) return "absent";
  return type_text(value.scalar_type(), value.sizes()) +
         (value.device().is_cpu() ? "" : " on " + value.device().str());
}

void check_boundary(const Values& values, const Boundary& boundary, Stage stage, const char* side) {
  check_count(boundary.size(), values.size(), stage, side);
  for (std::size_t slot = 0; slot < values.size(); ++slot) {
    if (fits(values[slot], boundary[slot])) continue;
    throw BoundaryError(place(stage, side, slot) + ": expected " + to_text(boundary[slot]) + ", got " +
                        to_text(values[slot]));
  }
}

void BoundaryCheck::check(const Values& values, const std::optional<Boundary>& declared) {
  if (declared) {
    check_boundary(values, *declared, stage_, side_);
    return;
  }
  if (!seen_) seen_.emplace(values.size());
  check_count(seen_->size(), values.size(), stage_, side_);
  for (std::size_t slot = 0; slot < values.size(); ++slot) {
    const at::Tensor& value = values[slot];
    if (!value.defined()) continue;
    std::optional<Seen>& seen = (*seen_)[slot];
    if (!seen) seen = Seen{value.scalar_type(), value.device()};
    if (seen->dtype == value.scalar_type() && seen->device == value.device()) continue;
    throw BoundaryError(place(stage_, side_, slot) + ": expected " + dtype_text(seen->dtype) + " on " +
                        seen->device.str() + " as in the step's first microbatch, got " + to_text(value) +
                        " on " + value.device().str());
  }
}

}  // namespace pipewright
