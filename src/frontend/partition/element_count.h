#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

namespace pipewright {

/// Of a tensor with these sizes: a double, which does not overflow whatever a file says.
inline double element_count(const std::vector<std::int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), 1.0, std::multiplies<double>());
}

}  // namespace pipewright
