#pragma once

#include <random>
#include <vector>

#include "pipewright/schedule/schedule.h"

namespace pipewright {

/// Each possible skip of so many stages with a probability of one third; at least one, if there can be any.
inline std::vector<Skip> random_skips(Stage stages, std::mt19937& random) {
  std::vector<Skip> skips;
  while (skips.empty() && stages > 2) {
    for (Stage from = 0; from < stages; ++from) {
      for (Stage to = from + 2; to < stages; ++to) {
        if (random() % 3 == 0) skips.push_back({.from = from, .to = to});
      }
    }
  }
  return skips;
}

}  // namespace pipewright
