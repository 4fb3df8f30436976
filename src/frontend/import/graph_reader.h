#pragma once

#include "frontend/schema/json_fields.h"
#include "frontend/schema/program_description.h"
#include "pipewright/frontend/graph.h"

namespace pipewright {

/// The graph of an exported program, from its `model.json`, and what else that says of it. `constants`:
/// tensors that it names, by name. Throws ParseError, and Error for what is not supported.
struct ReadProgram {
  Graph graph;
  ProgramDescription description;
};
ReadProgram read_graph(const Json& document, const std::map<std::string, at::Tensor>& constants);

}  // namespace pipewright
