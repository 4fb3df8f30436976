#pragma once

#include "frontend/schema/program_description.h"
#include "pipewright/frontend/graph.h"

namespace pipewright {

/// `NAME` of `NAME@STAGE`: what a parameter is called in the file.
std::string name_in_file(const std::string& name);

/// Whether the ports are those of the whole model, which has these, if it has names.
bool has_names(const std::vector<Graph::Port>& ports, const std::vector<std::string>& names);

/// What a constant is called in the file, by its value.
std::string constant_name(ValueId value);

/// A graph as the `model.json` of an exported program. Throws Error for what that cannot say.
///
/// Nodes are written from the graph; what a graph does not have, the types and sizes of values above all, is
/// taken from the program that it comes from, by the names of values. (Python needs a description of every
/// value, and with dynamic sizes these are expressions that only the export or the trace knows. Nodes are not
/// copied from the file, since a graph's differ: regions are inlined, tied parameters merged, numbers taken
/// from tensors.)
Json program_json(const Graph& graph, const ProgramDescription& description);

}  // namespace pipewright
