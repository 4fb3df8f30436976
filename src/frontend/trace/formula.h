#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace pipewright {

using Numbers = std::vector<std::int64_t>;  // of each recording one

/// A number as a·n+b, or as n/k, of a number n that differs from recording to recording.
struct Formula {
  std::int64_t factor = 1;
  std::int64_t addend = 0;
  std::int64_t divisor = 1;
};

/// What fits all recordings, if anything does. Three different n are needed for it to mean something, but for
/// n itself.
std::optional<Formula> fit(const Numbers& of, const Numbers& wanted);

}  // namespace pipewright
