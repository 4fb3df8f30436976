#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pipewright {

/// Whether a tensor of that geometry lies within a storage of so many elements.
inline bool fits(const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides,
                 std::int64_t offset, std::size_t elements) {
  if (sizes.size() != strides.size() || offset < 0) return false;
  auto left = static_cast<std::int64_t>(elements) - offset;
  const bool empty = std::ranges::count(sizes, 0) > 0;
  for (std::size_t at = 0; at < sizes.size(); ++at) {
    if (sizes[at] < 0 || strides[at] < 0) return false;
    if (empty || strides[at] == 0) continue;
    if (sizes[at] - 1 > left / strides[at]) return false;
    left -= (sizes[at] - 1) * strides[at];
  }
  return empty || left >= 1;
}

}  // namespace pipewright
