#pragma once

#include <optional>
#include <vector>

#include "pipewright/frontend/graph.h"

namespace pipewright {

/// Between which nodes of a graph a value lives: where it is given, first and last used. What comes in is
/// given before the first node, and what goes out is used after the last.
struct Lifetime {
  std::ptrdiff_t given = -1;
  std::ptrdiff_t first_use = -1;
  std::ptrdiff_t last_use = -1;
  /// A parameter, a buffer or a constant: every stage that uses it has it.
  bool is_state = true;

  /// Whether it is needed on both sides of a cut before that node.
  bool crosses(std::ptrdiff_t cut) const {
    return (is_state ? first_use >= 0 && first_use < cut : given < cut) && last_use >= cut;
  }
};
std::vector<Lifetime> lifetimes(const Graph& graph);

/// Two values that share memory, which is written to, but would no longer be shared behind a cut; one and the
/// same for a parameter or buffer, or a part of it.
struct CutConflict {
  ValueId first;
  ValueId second;
};

/// By node: what stands against a cut before it.
std::vector<std::optional<CutConflict>> cut_conflicts(const Graph& graph);

}  // namespace pipewright
