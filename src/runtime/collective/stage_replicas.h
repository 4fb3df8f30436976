#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/runtime/pipeline.h"
#include "runtime/collective/collective.h"

namespace pipewright {

/// What the stages of one pipeline rank share with the other processes that have replicas of it.
/// Gathering and summing have an order each: where a process has several replicas of the
/// rank, the first that comes starts a gathering, and the last a sum.
struct ReplicaLinks {
  std::unique_ptr<Collective> gathers;  ///< Null where this process has all replicas.
  std::unique_ptr<Collective> sums;
  std::mutex mutex;  ///< Held from when something is due until it is started.
};

/// The replicas of one stage in this process, kept alike with those of other processes. They
/// share one copy of the parameters: threads see the same memory.
///
/// The rank's actions call it, each from its replica's thread; `member` is the replica's place among the
/// local ones. The rest is called while no rank runs.
class StageReplicas {
 public:
  virtual ~StageReplicas() = default;

  /// Gradients of earlier steps are put aside: what the step adds is summed alone.
  virtual void begin_step() = 0;

  /// Starts to bring the parameters here.
  virtual void unshard(std::size_t member) = 0;
  /// Waits until they are here.
  virtual void wait_for_parameters() = 0;
  virtual void reshard(std::size_t member) = 0;
  /// This replica's gradients are complete; the sum over all replicas starts when all of them are.
  virtual void reduce_grad() = 0;

  /// Waits for the sums; afterwards the parameters have their gradients.
  virtual void end_step() = 0;
  /// Instead, after a failure: forgets what the step has done.
  virtual void drop_step() = 0;

  virtual std::vector<LocalParameter> parameters() const = 0;

  /// Puts whole parameters into `state` where what is there is not one. All processes call it.
  virtual void gather_state(Pipeline::StateDict& state) = 0;
  /// Copies in the values of what the modules do not have between steps, and takes it out of `theirs`.
  virtual void load_state(const Pipeline::StateDict& state, Pipeline::StateDict& theirs) = 0;
};

/// The modules of a stage's local replicas, and what they are called.
struct StageMembers {
  Stage stage;
  std::vector<StageModel*> models;
};

/// Each process has all parameters; gradients are summed in buckets.
std::unique_ptr<StageReplicas> make_replicated_stage(const StageMembers& members, ReplicaLinks& links,
                                                     std::optional<at::ScalarType> reduce_dtype);

/// Each process keeps an equal part of the flattened parameters. REQUIRES: there are other processes.
std::unique_ptr<StageReplicas> make_sharded_stage(const StageMembers& members, ReplicaLinks& links,
                                                  std::optional<at::ScalarType> reduce_dtype);

}  // namespace pipewright
