#pragma once

#include <string>
#include <vector>

#include "pipewright/runtime/world.h"
#include "pipewright/schedule/schedule.h"
#include "runtime/executor/rank_executor.h"

namespace pipewright {

/// Makes sure that every process of the world has been given the same plan, placement and
/// library, and that the declared boundaries of neighbouring stages fit together.
/// Throws Error, in every process, that names the first difference.
void check_agreement(World& world, const Schedule& plan, const std::vector<int>& processes,
                     const StageModels& models);

/// The first error that any process brings, with its number; empty where none does.
std::string first_error(World& world, const std::string& own);

}  // namespace pipewright
