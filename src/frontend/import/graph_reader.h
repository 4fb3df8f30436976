#pragma once

#include "frontend/schema/json_fields.h"
#include "pipewright/frontend/graph.h"

namespace pipewright {

/// The graph of an exported program, from its `model.json`. `constants`: tensors that it names, by name.
/// Throws ParseError, and Error for what is not supported.
Graph read_graph(const Json& document, const std::map<std::string, at::Tensor>& constants);

}  // namespace pipewright
