#pragma once

#include <functional>
#include <vector>

#include "pipewright/runtime/update.h"
#include "runtime/executor/captured_steps.h"

namespace pipewright {

/// An update as a part of a step's graph. `look`: whether it is to leave everything as it is where a loss or
/// a gradient is not finite; then the tail's result are their telling_numbers. `gradients`: those that there
/// are, when it is launched. All but the function are kept by reference.
CapturedSteps::Tail make_tail(Update& update, bool look, std::function<std::vector<at::Tensor>()> gradients);

}  // namespace pipewright
