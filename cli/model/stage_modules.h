#pragma once

#include <string>
#include <vector>

#include "pipewright/frontend/graph.h"

namespace pipewright::cli {

/// What of a model's modules each stage has: the largest that are there as a whole, `blocks.0–3`, and those
/// of which there are parts, `head (part)`, in the order in which they run.
std::vector<std::vector<std::string>> stage_modules(const Graph& graph, const std::vector<std::size_t>& cuts);

}  // namespace pipewright::cli
