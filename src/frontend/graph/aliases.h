#pragma once

#include <set>
#include <vector>

#include "pipewright/frontend/graph.h"

namespace pipewright {

/// Which values of a graph share memory, as the operators' schemas say, and where it is written to.
class Aliases {
 public:
  explicit Aliases(const Graph& graph);

  /// Values that share memory with each other and are written to, each with the nodes that do so.
  struct Written {
    std::vector<ValueId> values;
    std::set<std::size_t> writers;
  };
  const std::vector<Written>& written() const { return written_; }

 private:
  std::vector<Written> written_;
};

}  // namespace pipewright
