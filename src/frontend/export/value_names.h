#pragma once

#include <string>
#include <vector>

#include "frontend/graph/unique_names.h"
#include "frontend/schema/program_description.h"
#include "pipewright/frontend/graph.h"

namespace pipewright {

/// Throws Error for a value that the description does not know.
const ValueDescription& description_of(ValueId value, const Graph& graph,
                                       const ProgramDescription& description);

/// What the values of a graph are called in a file, and what they are: names that Python takes, each once.
class ValueNames {
 public:
  ValueNames(const Graph& graph, const ProgramDescription& description);

  const std::string& of(ValueId value) const { return names_[static_cast<std::size_t>(value)]; }
  const ValueDescription& description(ValueId value) const {
    return description_of(value, graph_, description_);
  }
  ValueKind kind(ValueId value) const { return description(value).kind; }

  /// A name that nothing has yet, like the one given.
  std::string fresh(const std::string& like);

 private:
  const Graph& graph_;
  const ProgramDescription& description_;
  std::vector<std::string> names_;
  UniqueNames taken_;
};

}  // namespace pipewright
