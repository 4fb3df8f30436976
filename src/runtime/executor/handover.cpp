#include "runtime/executor/handover.h"

#include <ATen/core/Tensor.h>

#include <string>

#include "pipewright/runtime/errors.h"

namespace pipewright {

Values values_for(const Way& way, const Values& values) {
  if (way.all) return values;
  Values picked(way.slots.size());
  for (std::size_t at = 0; at < picked.size(); ++at) {
    if (way.slots[at] < values.size()) picked[at] = values[way.slots[at]];
  }
  return picked;
}

Values handed_on(const Way& way, const Values& outputs, bool train) {
  Values handed = values_for(way, outputs);
  if (!train) return handed;
  for (at::Tensor& value : handed) {
    if (!value.defined()) continue;
    const bool differentiable = value.requires_grad();
    value = value.detach();
    if (differentiable) value.set_requires_grad(true);
  }
  return handed;
}

void check_taken_outputs(Stage stage, const StageWays& ways, const Values& outputs) {
  for (const Way& way : ways.later) {
    for (const std::size_t slot : way.slots) {
      if (slot < outputs.size()) continue;
      throw BoundaryError("stage " + std::to_string(stage) + ", outputs: stage " + std::to_string(way.peer) +
                          " takes slot " + std::to_string(slot) + ", and there are " +
                          std::to_string(outputs.size()) + " values");
    }
  }
}

SharedInputs::SharedInputs(Stage stage, const std::vector<std::size_t>& slots, const Values& inputs)
    : stage_(stage) {
  for (const std::size_t slot : slots) {
    if (!inputs[slot].defined() || inputs[slot].is_inference()) continue;
    kept_.push_back({slot, inputs[slot], inputs[slot]._version()});
  }
}

void SharedInputs::check_unchanged() const {
  for (const auto& [slot, value, version] : kept_) {
    if (value._version() == version) continue;
    throw BoundaryError("stage " + std::to_string(stage_) + ", input slot " + std::to_string(slot) +
                        ": it was changed in place, but is taken again; change a clone of it");
  }
}

}  // namespace pipewright
