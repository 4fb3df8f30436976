#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/runtime/errors.h"
#include "pipewright/runtime/microbatch.h"
#include "pipewright/runtime/routes.h"
#include "pipewright/runtime/stage_model.h"
#include "pipewright/runtime/world.h"
#include "pipewright/schedule/lower.h"
#include "pipewright/schedule/schedule.h"
#include "pipewright/schedule/timeline.h"

namespace pipewright {

class Update;

/// The loss of one microbatch, a scalar, from the last stage's outputs and the
/// microbatch's targets (and whatever else is passed with them).
using Loss = std::function<at::Tensor(const Values& outputs, const Values& targets)>;

struct PipelineOptions {
  /// Not given: the last stage's first output is the loss.
  Loss loss = {};
  /// Where each stage's inputs come from; what goes past stages is sent directly. Empty: each stage takes
  /// all outputs of the one before.
  Routes routes = {};
  SplitSpec split = {};
  std::vector<Merge> merge = {};
  /// Groups of parameters that are one, by their global names: equal from the
  /// start, gradients summed after every step, counted once in the norm.
  std::vector<std::vector<std::string>> tied = {};
  /// The longest that an action waits for its data.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// Threads of one operator; 0: the cores shared out among the ranks.
  int threads_per_rank = 0;
  /// How a compute-only schedule becomes a plan.
  LowerOptions lower = {};
  /// The processes among which the ranks are spread; null: all ranks are threads of this one.
  /// Every process makes the pipeline, and calls its functions, in the same order.
  std::shared_ptr<World> world = {};
  /// Replicas of the whole pipeline, each with its own part of the data: gradients are summed over them
  /// at REDUCE_GRAD. All start with the first one's parameters and buffers.
  int data_parallel = 1;
  /// Parameters are spread over the processes that have replicas of a stage, and there as a whole only
  /// from UNSHARD to RESHARD.
  bool sharded = false;
  /// In which gradients are summed over the replicas, and in which shards are kept. Not given: the
  /// parameter's.
  std::optional<at::ScalarType> reduce_dtype = {};
  /// For each rank, and there for each replica, the process where it runs. Empty: equally many, in that
  /// order, on each.
  std::vector<int> processes = {};
  /// Where a failure's flight record goes: what the ranks of this process did last, for `pipewright explain`.
  /// Empty: nowhere.
  std::filesystem::path flight_record = {};
  /// By rank, where it computes: its stages' modules are moved there. Several ranks may share a device.
  /// Empty: stages stay where they were made. Batches are brought by the caller to where the first and the
  /// last stage are.
  std::vector<at::Device> devices = {};
  /// A training step becomes one CUDA graph, where all ranks are on one CUDA device of this process: recorded
  /// when a batch of the same shapes comes for the third time, then replayed with the new numbers. Gradients
  /// of replayed steps lie in the same memory every time. What cannot be recorded runs as it would without.
  bool cuda_graph = false;
};

/// What to do with a step whose losses or gradients are not all finite numbers.
enum class NonFinite {
  GoOn,  ///< They are not looked at.
  Skip,  ///< Its gradients are dropped, in every process alike.
  Stop,  ///< The same, and it throws NonFiniteError.
};

struct StepOptions {
  /// The losses' sum is divided by it, and so are the gradients. Not given: the
  /// number of microbatches of all replicas, so that the loss is their mean.
  std::optional<double> denominator = {};
  /// Steps over which gradients are accumulated before they are used: multiplies the denominator
  /// of the gradients, not of the loss shown.
  int accumulation = 1;
  NonFinite non_finite = NonFinite::GoOn;
  /// Follows when all gradients are there, tied ones summed, unless the step is skipped: an optimizer of
  /// optimizer.h, for parameters of this pipeline alone. Part of the step's CUDA graph, where there is one,
  /// no parameter is tied and no gradient is left from before. Not given: what follows is the caller's.
  Update* update = nullptr;
  /// Keep and merge the last stage's outputs.
  bool outputs = false;
  /// Take the time of every action.
  bool trace = false;
  /// Losses, outputs and timelines, where they are asked for, reach every process, and not only that of
  /// the last stage: one broadcast.
  bool everywhere = true;
};

struct EvalOptions {
  /// Of each replica; 0: as many as the schedule has.
  Microbatch microbatches = 0;
  std::optional<double> denominator = {};
  bool outputs = true;
  bool trace = false;
  bool everywhere = true;
};

struct StepResult {
  /// Σ losses / denominator, detached; undefined where there was no loss.
  at::Tensor loss;
  /// By replica and there by microbatch, whatever the order in which they ran.
  std::vector<at::Tensor> losses;
  /// The last stage's outputs, merged, when asked for.
  Values outputs;
  /// When everything ran in the first replica, in milliseconds from the start of the step, when asked for.
  Timeline timeline;
  /// For each rank the most microbatches, over its stages, whose activations were held at once.
  std::vector<int> peak_live;
  /// What was not a finite number, where the step was skipped for that: no optimizer has followed, or should.
  std::string skipped_for;
  /// Whether it was a CUDA graph that ran.
  bool replayed = false;
};

/// What a handler sees of the action it stands in for.
struct ActionContext {
  int replica;
  Rank rank;
  /// One action, or the parts of an OVERLAP_F_B.
  std::span<const Action> cell;
  const Schedule& plan;
  /// Those of this replica.
  const std::vector<MicrobatchValues>& microbatches;
  /// By microbatch; undefined until the last stage's forward has run.
  std::span<const at::Tensor> losses;
  /// The model of a stage of this rank.
  std::function<StageModel&(Stage)> stage;
  /// Does what would be done without the handler: for the whole cell, or one part of it.
  std::function<void()> run;
  std::function<void(Action)> run_part;
};
using Handler = std::function<void(const ActionContext&)>;

/// A parameter as this process has it: whole or, where it is sharded, a part of it, flat.
struct LocalParameter {
  /// In the unsplit model.
  std::string name;
  /// What an optimizer works on; its gradient is that of all replicas.
  at::Tensor tensor;
  /// Of the whole.
  std::vector<std::int64_t> sizes;
  /// Where the part begins in the flattened whole.
  std::int64_t offset = 0;
  /// True in one of the processes that have the same; the others leave it out of sums over all.
  bool counts = true;
  Stage stage = 0;
};

/// A model cut into stages, run by a schedule. The ranks are threads of this process, or of
/// several: then stages, parameters and gradients here are those of its own ranks,
/// and batches need to have only what its own stages take. With data parallelism a batch
/// is that of this process's replicas, one after the other.
///
/// One thread at a time may use a Pipeline; the stages, the loss and handlers
/// are called on the ranks' threads. A step adds to the parameters' gradients;
/// zero_grad is the caller's, and the optimizer, unless a step is given it.
class Pipeline {
 public:
  /// `schedule`: compute-only or lowered; its skips are those of the options' routes. Throws InvalidSchedule
  /// if it is not valid or could deadlock.
  Pipeline(const Schedule& schedule, const StageFactory& build, PipelineOptions options = {});
  ~Pipeline();
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;

  /// Forward and backward of every microbatch, and the update, if one is given. Throws StepError.
  StepResult step(const Batch& batch, const StepOptions& options = {});
  StepResult step(Values inputs, Values targets, const StepOptions& options = {});

  /// Forward without gradients; losses when there are targets, or no loss function.
  StepResult eval(const Batch& batch, const EvalOptions& options = {});

  /// Forward without gradients; each microbatch's outputs are handed over as they
  /// come, on the last stage's thread, one at a time. Microbatches count on from replica to replica.
  using OutputHandler = std::function<void(Microbatch, Values)>;
  void infer(const Batch& batch, const OutputHandler& on_output, const EvalOptions& options = {});

  /// Replaces what a kind of action does, or an OVERLAP_F_B as a whole; an empty
  /// handler restores it. Handlers run on the rank's thread.
  void set_handler(Kind kind, Handler handler);
  void set_overlap_handler(Handler handler);

  /// The lowered plan that `step` runs.
  const Schedule& plan() const;
  /// Of this process's first replica. Throws ArgumentError for a stage that is not of this process.
  /// Between steps the modules of sharded stages have parameters without memory.
  StageModel& stage(Stage stage);
  /// The replicas that have ranks in this process, in ascending order.
  std::vector<int> replicas() const;
  /// Training or evaluation mode of every module.
  void train(bool on = true);

  /// What an optimizer works on, by global names; a tensor that several stages share comes once.
  std::vector<LocalParameter> local_parameters() const;
  std::vector<std::pair<std::string, at::Tensor>> named_parameters() const;
  std::vector<at::Tensor> parameters() const;
  /// The buffers of all replicas of this process, likewise; those of the first replica count.
  std::vector<LocalParameter> local_buffers() const;
  void zero_grad();

  /// The norm of all gradients as one vector, p from 1 to infinity; tied parameters count once.
  at::Tensor grad_norm(double p = 2) const;
  /// Scales the gradients so that their norm is at most `max_norm`; returns the norm before.
  at::Tensor clip_grad_norm(double max_norm, double p = 2);

  /// Parameters and buffers by their global names: the tensors themselves, not copies; but sharded
  /// parameters are gathered, for which all processes call it.
  using StateDict = std::map<std::string, at::Tensor>;
  StateDict state_dict() const;
  /// Copies values in. Throws ArgumentError that names what is missing, of another shape or unknown
  /// to all processes, before anything is changed.
  void load_state_dict(const StateDict& state);

  /// Steps that were skipped for numbers that are not finite.
  std::int64_t skipped_steps() const;

  /// Writes what the ranks of this process did last, and do now, to where flight records go; the file, or
  /// nothing where it cannot be written. From any thread.
  std::filesystem::path write_flight_record(const std::string& because) const;

  /// Why steps do not become CUDA graphs, where they should; empty where they do, or will.
  std::string not_captured_for() const;

  /// Stages whose I had to run the whole backward in the steps so far, with the reason.
  std::map<Stage, std::string> unsplit_stages() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pipewright
