#pragma once

#include <random>

#include "pipewright/schedule/schedule.h"

namespace pipewright {

enum class Mutation { Drop, Swap, Duplicate, Move };

/// The schedule with one cell dropped, two of a rank swapped, one doubled at
/// another place of its rank, or one moved to another rank; where and which is
/// chosen by `random`. Placement and counts stay those of the original.
Schedule mutate(const Schedule& schedule, Mutation mutation, std::mt19937& random);

}  // namespace pipewright
