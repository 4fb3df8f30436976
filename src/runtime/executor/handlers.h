#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "pipewright/runtime/pipeline.h"

namespace pipewright {

/// What users have put in the place of actions.
struct Handlers {
  std::array<Handler, static_cast<std::size_t>(Kind::ReduceGrad) + 1> by_kind;
  Handler overlap;

  bool any() const {
    return overlap || std::ranges::any_of(by_kind, [](const Handler& handler) { return bool{handler}; });
  }
  const Handler& of(Kind kind) const { return by_kind[static_cast<std::size_t>(kind)]; }
};

}  // namespace pipewright
