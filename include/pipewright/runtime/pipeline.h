#pragma once

#include <chrono>
#include <cstddef>
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
#include "pipewright/runtime/stage_model.h"
#include "pipewright/runtime/world.h"
#include "pipewright/schedule/lower.h"
#include "pipewright/schedule/schedule.h"
#include "pipewright/schedule/timeline.h"

namespace pipewright {

/// The loss of one microbatch, a scalar, from the last stage's outputs and the
/// microbatch's targets (and whatever else is passed with them).
using Loss = std::function<at::Tensor(const Values& outputs, const Values& targets)>;

struct PipelineOptions {
  /// Not given: the last stage's first output is the loss.
  Loss loss = {};
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
  /// For each rank the process where it runs. Empty: equally many ranks, in order, on each.
  std::vector<int> processes = {};
};

struct StepOptions {
  /// The losses' sum is divided by it, and so are the gradients. Not given: the
  /// number of microbatches, so that the loss is their mean.
  std::optional<double> denominator = {};
  /// Steps over which gradients are accumulated before they are used: multiplies the denominator
  /// of the gradients, not of the loss shown.
  int accumulation = 1;
  /// Keep and merge the last stage's outputs.
  bool outputs = false;
  /// Take the time of every action.
  bool trace = false;
  /// Losses, outputs and timelines, where they are asked for, reach every process, and not only that of
  /// the last stage: one broadcast.
  bool everywhere = true;
};

struct EvalOptions {
  /// 0: as many as the schedule has.
  Microbatch microbatches = 0;
  std::optional<double> denominator = {};
  bool outputs = true;
  bool trace = false;
  bool everywhere = true;
};

struct StepResult {
  /// Σ losses / denominator, detached; undefined where there was no loss.
  at::Tensor loss;
  /// By microbatch, whatever the order in which they ran.
  std::vector<at::Tensor> losses;
  /// The last stage's outputs, merged, when asked for.
  Values outputs;
  /// When everything ran, in milliseconds from the start of the step, when asked for.
  Timeline timeline;
  /// For each rank the most microbatches, over its stages, whose activations were held at once.
  std::vector<int> peak_live;
};

/// What a handler sees of the action it stands in for.
struct ActionContext {
  Rank rank;
  /// One action, or the parts of an OVERLAP_F_B.
  std::span<const Action> cell;
  const Schedule& plan;
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

/// A model cut into stages, run by a schedule. The ranks are threads of this process, or of
/// several: then stages, parameters and gradients here are those of its own ranks,
/// and batches need to have only what its own stages take.
///
/// One thread at a time may use a Pipeline; the stages, the loss and handlers
/// are called on the ranks' threads. A step adds to the parameters' gradients;
/// optimizer and zero_grad are the caller's.
class Pipeline {
 public:
  /// `schedule`: compute-only or lowered. Throws InvalidSchedule if it is not valid or could deadlock.
  Pipeline(const Schedule& schedule, const StageFactory& build, PipelineOptions options = {});
  ~Pipeline();
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;

  /// Forward and backward of every microbatch. Throws StepError.
  StepResult step(const Batch& batch, const StepOptions& options = {});
  StepResult step(Values inputs, Values targets, const StepOptions& options = {});

  /// Forward without gradients; losses when there are targets, or no loss function.
  StepResult eval(const Batch& batch, const EvalOptions& options = {});

  /// Forward without gradients; each microbatch's outputs are handed over as they
  /// come, on the last stage's thread.
  using OutputHandler = std::function<void(Microbatch, Values)>;
  void infer(const Batch& batch, const OutputHandler& on_output, const EvalOptions& options = {});

  /// Replaces what a kind of action does, or an OVERLAP_F_B as a whole; an empty
  /// handler restores it. Handlers run on the rank's thread.
  void set_handler(Kind kind, Handler handler);
  void set_overlap_handler(Handler handler);

  /// The lowered plan that `step` runs.
  const Schedule& plan() const;
  /// Throws ArgumentError for a stage that is not of this process.
  StageModel& stage(Stage stage);
  /// Training or evaluation mode of every module.
  void train(bool on = true);

  /// Parameters by their global names; a tensor that several stages share comes once.
  std::vector<std::pair<std::string, at::Tensor>> named_parameters() const;
  std::vector<at::Tensor> parameters() const;
  void zero_grad();

  /// The norm of all gradients as one vector, p from 1 to infinity; tied parameters count once.
  at::Tensor grad_norm(double p = 2) const;
  /// Scales the gradients so that their norm is at most `max_norm`; returns the norm before.
  at::Tensor clip_grad_norm(double max_norm, double p = 2);

  /// Parameters and buffers by their global names: the tensors themselves, not copies.
  using StateDict = std::map<std::string, at::Tensor>;
  StateDict state_dict() const;
  /// Copies values in. Throws ArgumentError that names what is missing, of another shape or unknown
  /// to all processes, before anything is changed.
  void load_state_dict(const StateDict& state);

  /// Stages whose I had to run the whole backward in the steps so far, with the reason.
  std::map<Stage, std::string> unsplit_stages() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pipewright
