#pragma once

#include <set>

#include "frontend/export/value_names.h"

namespace pipewright {

/// The nodes of a graph as the schema has them, and the descriptions of all values that they name. Parts that
/// run without gradients or under autocast are graphs inside of nodes. `skipped`: nodes that are not written.
/// Throws Error for what the schema has no form for.
Json nodes_json(const Graph& graph, const std::set<std::size_t>& skipped,
                const std::map<std::string, std::string>& module_types, ValueNames& names);

/// The descriptions of values in the tables that a graph of the schema has, without its nodes and ports.
Json values_json(const std::set<ValueId>& values, const ValueNames& names);

}  // namespace pipewright
