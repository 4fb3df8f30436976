#pragma once

#include <vector>

#include "frontend/schema/program_description.h"
#include "frontend/trace/recording.h"

namespace pipewright {

/// What a file says of a traced graph beyond the graph: `graph` is what the recordings were made into. Sizes
/// that follow the batch are expressions of one symbol.
ProgramDescription describe(const Graph& graph, const ModelState& state,
                            const std::vector<Recording>& recordings);

}  // namespace pipewright
