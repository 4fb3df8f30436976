#pragma once

#include <string>

#include "pipewright/runtime/world.h"
#include "pipewright/schedule/schedule.h"
#include "runtime/collective/data_parallel.h"

namespace pipewright {

/// Makes sure that every process of the world has been given the same plan, mesh and library, that
/// the replicas of a stage have the same parameters, and that the declared boundaries of
/// neighbouring stages fit together. `models`: those of this process.
/// Throws Error, in every process, that names the first difference.
void check_agreement(World& world, const Schedule& plan, const Mesh& mesh, const PipelineOptions& options,
                     const ReplicaModels& models);

/// The first error that any process brings, with its number; empty where none does.
std::string first_error(World& world, const std::string& own);

}  // namespace pipewright
