#pragma once

#include "pipewright/frontend/graph.h"

namespace pipewright {

/// Calls `use` with every value that a node takes, in order; one that it takes twice, twice.
template <typename Use>
void for_each_use(const GraphNode& node, Use use) {
  for (const Argument& argument : node.arguments) {
    if (const auto* value = std::get_if<ValueId>(&argument.is)) use(*value);
    if (const auto* list = std::get_if<Argument::List>(&argument.is)) {
      for (const auto& item : list->items) {
        if (const auto* value = std::get_if<ValueId>(&item)) use(*value);
      }
    }
  }
}

}  // namespace pipewright
