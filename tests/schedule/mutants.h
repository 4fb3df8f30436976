#pragma once

#include <random>

#include "pipewright/schedule/schedule.h"

namespace pipewright {

enum class Mutation { Drop, Swap, Duplicate, Move, Redirect };

/// The schedule with one cell dropped, two of a rank swapped, one doubled at
/// another place of its rank, one moved to another rank, or one message made to
/// go to or come from another stage; where and which is chosen by `random`.
/// Placement, counts and skips stay those of the original. REQUIRES: for
/// Redirect, messages between more than two stages.
Schedule mutate(const Schedule& schedule, Mutation mutation, std::mt19937& random);

}  // namespace pipewright
