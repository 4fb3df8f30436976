#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "pipewright/runtime/pipeline.h"
#include "runtime/collective/stage_replicas.h"
#include "runtime/executor/failure.h"
#include "runtime/world/mesh.h"

namespace pipewright {

/// The models of the stages of one replica in this process, by stage.
using StageModels = std::map<Stage, StageModel>;
/// Those of all its replicas.
using ReplicaModels = std::map<int, StageModels>;

/// What this process does to keep the replicas of its stages alike. Without replicas, nothing.
class DataParallel {
 public:
  /// `models` are those of the mesh's local replicas; both outlive this object. Throws
  /// ArgumentError where the models or the plan cannot be replicated.
  DataParallel(const Mesh& mesh, const Schedule& plan, ReplicaModels& models, const PipelineOptions& options);

  /// Null without data parallelism.
  StageReplicas* stage(Stage stage);
  /// The place of a local replica among those of its rank.
  std::size_t member(Position position) const;

  void begin_step();
  /// Reports what goes wrong.
  void end_step(Failure& failure);
  void drop_step();
  /// Makes every wait throw Stopped. From any thread.
  void abort();

  /// By stage; empty without data parallelism.
  const std::map<Stage, std::unique_ptr<StageReplicas>>& stages() const { return stages_; }

 private:
  const Mesh& mesh_;
  const Placement placement_;
  std::map<Rank, ReplicaLinks> links_;  // of the ranks in this process
  std::map<Stage, std::unique_ptr<StageReplicas>> stages_;
};

}  // namespace pipewright
