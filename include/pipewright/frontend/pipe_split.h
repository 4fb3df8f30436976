#pragma once

#include "pipewright/runtime/values.h"

namespace pipewright {

/// Marks a place between two stages in a model's forward: `x = pipe_split(x)`. Gives back what it is given,
/// and does nothing else; but `trace` leaves a mark in the graph there, which `marked_cuts` finds.
at::Tensor pipe_split(at::Tensor value);
Values pipe_split(Values values);

}  // namespace pipewright
