#pragma once

#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

#include "pipewright/frontend/graph.h"

namespace pipewright {

/// Takes its arguments from the stack and leaves its result there.
using NumberOperator = void (*)(std::vector<c10::IValue>& stack);

/// The number that a tensor holds, for numbers that go from stage to stage.
inline constexpr const char* kNumberOf = "pipewright.number_of";

/// A mark between stages: takes nothing, does nothing, and gives nothing.
inline constexpr const char* kPipeSplit = "pipewright.pipe_split";

/// Python's operators on sizes, as graphs name them: `_operator.mul`, `torch.sym_max`. Null for others.
NumberOperator find_number_operator(const std::string& name);

/// Whether a node only computes sizes.
bool is_on_numbers(const GraphNode& node);

}  // namespace pipewright
