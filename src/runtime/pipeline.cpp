#include "pipewright/runtime/pipeline.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <limits>
#include <set>
#include <sstream>
#include <utility>

#include "pipewright/schedule/deadlock.h"
#include "pipewright/schedule/generate.h"
#include "pipewright/schedule/validate.h"
#include "runtime/executor/plan_runner.h"
#include "runtime/optim/norm.h"
#include "runtime/optim/parameters.h"
#include "runtime/optim/tied.h"
#include "runtime/transport/c10d.h"
#include "runtime/transport/inproc.h"
#include "runtime/world/agreement.h"
#include "runtime/world/remote_failure.h"
#include "runtime/world/results.h"
#include "runtime/world/world_impl.h"

namespace pipewright {
namespace {

/// A plan that is proven to run to its end, from a schedule in either format.
Schedule checked_plan(const Schedule& schedule, const LowerOptions& options) {
  Schedule plan = is_lowered(schedule) ? schedule : lower(schedule, options);
  if (const std::vector<Diagnostic> found = validate(plan, Format::Lowered); !found.empty()) {
    throw InvalidSchedule(to_text(found.front()) +
                          (found.size() == 1 ? "" : " (and " + std::to_string(found.size() - 1) + " more)"));
  }
  // A send in this process never waits for its receiver.
  const DeadlockVerdict verdict =
      prove_deadlock_free(plan, {.messages = std::numeric_limits<std::size_t>::max()});
  if (!verdict.free()) throw InvalidSchedule("the plan would deadlock:\n" + to_text(verdict));
  return plan;
}

/// Threads of one operator on the caller's thread, put back at the end.
class ThreadCount {
 public:
  explicit ThreadCount(int threads) : before_(at::get_num_threads()) {
    if (threads != before_) at::set_num_threads(threads);
  }
  ~ThreadCount() {
    if (at::get_num_threads() != before_) at::set_num_threads(before_);
  }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int before_;
};

/// For each rank the process where it runs.
std::vector<int> place_ranks(Rank ranks, const PipelineOptions& options) {
  const int size = options.world ? options.world->size() : 1;
  if (!options.processes.empty()) {
    if (options.processes.size() != static_cast<std::size_t>(ranks)) {
      throw ArgumentError("processes are given for " + std::to_string(options.processes.size()) +
                          " ranks, the schedule has " + std::to_string(ranks));
    }
    for (const int process : options.processes) {
      if (process < 0 || process >= size) {
        throw ArgumentError("there is no process " + std::to_string(process) + " in a world of " +
                            std::to_string(size));
      }
    }
    return options.processes;
  }
  if (ranks % size != 0) {
    throw ArgumentError("a schedule of " + std::to_string(ranks) + " ranks does not fit a world of " +
                        std::to_string(size) +
                        " processes: start as many processes as there are ranks, or a divisor of that");
  }
  std::vector<int> processes;
  processes.reserve(static_cast<std::size_t>(ranks));
  for (Rank rank = 0; rank < ranks; ++rank) processes.push_back(rank / (ranks / size));
  return processes;
}

std::vector<Rank> ranks_of(int process, const std::vector<int>& processes) {
  std::vector<Rank> ranks;
  for (std::size_t rank = 0; rank < processes.size(); ++rank) {
    if (processes[rank] == process) ranks.push_back(static_cast<Rank>(rank));
  }
  return ranks;
}

}  // namespace

class Pipeline::Impl {
 public:
  Impl(const Schedule& schedule, const StageFactory& build, PipelineOptions options)
      : options_(std::move(options)),
        plan_(checked_plan(schedule, options_.lower)),
        processes_(place_ranks(plan_.rank_count(), options_)),
        local_ranks_(ranks_of(world() ? world()->rank() : 0, processes_)),
        transport_(world() ? make_c10d_transport(*world(), processes_, plan_.stage_count(), options_.timeout)
                           : make_inproc_transport(options_.timeout)),
        failure_(*transport_, [this](const StepError& error) { tell_others(error); }),
        models_(build_models(build)),
        train_(std::move(plan_), local_ranks_, *transport_, models_, options_.loss, handlers, failure_) {
    state_of(models_);  // names are distinct
    if (world()) {
      check_agreement(*world(), plan(), processes_, models_);
      others_ = world()->impl().on_failure(
          [this](const std::string& word) { failure_.report_remote(remote_failure(word)); });
    }
    tied_ = TiedParameters(options_.tied, pipewright::named_parameters(models_), world());
    tied_.share_values();
    for (const std::vector<Action>& actions : plan().ranks) {
      trains_ |= std::ranges::any_of(actions, [](Action action) { return gives_weight_grad(action.kind); });
    }
    if (options_.threads_per_rank == 0) {
      const auto ranks = static_cast<int>(local_ranks_.size());
      options_.threads_per_rank = std::max(1, at::get_num_threads() / std::max(1, ranks));
    }
    if (local_ranks_.size() > 1) {
      workers_ = std::make_unique<Workers>(local_ranks_.size(), options_.threads_per_rank);
    }
  }

  StepResult step(const Batch& batch, const StepOptions& options) {
    if (!trains_) throw ArgumentError("the schedule has no backward; use eval or infer");
    const double denominator = denominator_of(options.denominator, plan().microbatches);
    if (options.accumulation < 1) {
      throw ArgumentError("accumulation must be at least 1, not " + std::to_string(options.accumulation));
    }
    Step step;
    step.train = true;
    step.with_loss = true;
    step.trace = options.trace;
    step.grad_scale = 1 / (denominator * options.accumulation);
    tied_.before_step();
    StepResult result = run(train_, step, batch, {denominator, options.outputs, options.everywhere});
    tied_.after_step();
    return result;
  }

  StepResult eval(const Batch& batch, const EvalOptions& options) {
    Step step;
    PlanRunner& runner = forward_runner(prepare_forward(batch, options, step));
    const double denominator = denominator_of(options.denominator, runner.plan().microbatches);
    return run(runner, step, batch, {denominator, options.outputs, options.everywhere});
  }

  void infer(const Batch& batch, const OutputHandler& on_output, const EvalOptions& options) {
    Step step;
    PlanRunner& runner = forward_runner(prepare_forward(batch, options, step));
    step.on_output = on_output;
    run(runner, step, batch, {.denominator = 1, .keep_outputs = false, .everywhere = false});
  }

  World* world() const { return options_.world.get(); }
  const Schedule& plan() const { return train_.plan(); }
  StageModels& models() { return models_; }
  const StageModels& models() const { return models_; }
  const TiedParameters& tied() const { return tied_; }
  const PlanRunner& training() const { return train_; }

  std::vector<at::Tensor> gradients(bool with_copies) const {
    std::vector<at::Tensor> grads;
    for (const auto& [name, parameter] : pipewright::named_parameters(models_)) {
      if (!parameter.grad().defined() || (!with_copies && tied_.is_copy(parameter))) continue;
      grads.push_back(parameter.grad());
    }
    return grads;
  }

  Handlers handlers;

 private:
  /// Forward plans are kept for so many numbers of microbatches.
  static constexpr std::size_t kForwardPlans = 8;

  struct Results {
    double denominator;
    bool keep_outputs;
    bool everywhere;
  };

  StageModels build_models(const StageFactory& build) const {
    StageModels models;
    for (Stage stage = 0; stage < plan_.stage_count(); ++stage) {
      const Rank rank = plan_.placement[static_cast<std::size_t>(stage)];
      if (std::ranges::find(local_ranks_, rank) != local_ranks_.end()) models.emplace(stage, build(stage));
    }
    return models;
  }

  void tell_others(const StepError& error) const {
    if (world()) world()->impl().report_failure(to_word(error));
  }

  /// The process of the last stage, where losses and outputs are.
  int last_process() const { return processes_[static_cast<std::size_t>(plan().placement.back())]; }

  static double denominator_of(const std::optional<double>& given, Microbatch microbatches) {
    const double denominator = given.value_or(microbatches);
    if (!(denominator > 0)) {
      throw ArgumentError("the denominator must be positive, not " + std::to_string(denominator));
    }
    return denominator;
  }

  Microbatch prepare_forward(const Batch& batch, const EvalOptions& options, Step& step) const {
    const bool targets =
        !batch.targets.empty() ||
        std::ranges::any_of(batch.microbatches, [](const auto& each) { return !each.targets.empty(); });
    step.with_loss = targets || !options_.loss;
    step.trace = options.trace;
    if (options.microbatches > 0) return options.microbatches;
    return batch.microbatches.empty() ? plan().microbatches
                                      : static_cast<Microbatch>(batch.microbatches.size());
  }

  PlanRunner& forward_runner(Microbatch microbatches) {
    const auto found = forward_.find(microbatches);
    if (found != forward_.end()) return *found->second;
    if (forward_.size() == kForwardPlans) forward_.clear();
    const Schedule forwards = make_schedule({.name = "ForwardOnly",
                                             .ranks = plan().rank_count(),
                                             .microbatches = microbatches,
                                             .placement = plan().placement});
    std::unique_ptr<PlanRunner>& runner = forward_[microbatches];
    runner = std::make_unique<PlanRunner>(checked_plan(forwards, options_.lower), local_ranks_, *transport_,
                                          models_, options_.loss, handlers, failure_);
    return *runner;
  }

  /// Cuts the batch. What is wrong with it here the others must hear of, too.
  std::vector<MicrobatchValues> split(const Batch& batch, Microbatch microbatches) const {
    try {
      return split_batch(batch, options_.split, microbatches);
    } catch (const std::exception& error) {
      if (world()) {
        world()->impl().report_failure("process " + std::to_string(world()->rank()) + ": " + error.what());
      }
      throw;
    }
  }

  StepResult run(PlanRunner& runner, Step& step, const Batch& batch, const Results& wanted) {
    if (world()) {
      if (const std::optional<std::string> word = world()->impl().failure()) throw remote_failure(*word);
    }
    const Microbatch microbatches = runner.plan().microbatches;
    step.microbatches = split(batch, microbatches);
    if (world() && step.trace) world()->all_gather({});  // so that all start at the same time
    step.losses.resize(static_cast<std::size_t>(microbatches));
    std::vector<Values> outputs;
    if (wanted.keep_outputs) {
      outputs.resize(static_cast<std::size_t>(microbatches));
      step.on_output = [&](Microbatch microbatch, Values values) {
        outputs[static_cast<std::size_t>(microbatch)] = std::move(values);
      };
    }
    if (workers_) {
      runner.run(step, workers_.get());
    } else {
      const ThreadCount threads(options_.threads_per_rank);
      runner.run(step, nullptr);
    }

    const at::AutoGradMode no_grad(false);
    StepResult result;
    if (step.losses.front().defined()) result.losses = std::move(step.losses);
    for (at::Tensor& loss : result.losses) {
      if (loss.dim() != 0) loss = loss.reshape({});
    }
    if (wanted.keep_outputs && (!world() || world()->rank() == last_process())) {
      result.outputs = merge_outputs(outputs, options_.merge);
    }
    if (step.trace) result.timeline = runner.take_timeline();
    if (world() && wanted.everywhere) share(result, step);
    if (!result.losses.empty()) result.loss = at::stack(result.losses).sum().div_(wanted.denominator);
    result.peak_live = runner.peak_live();
    return result;
  }

  /// Gives every process what only some have: losses and outputs, and the times of their ranks.
  void share(StepResult& result, const Step& step) const {
    Values values = {result.losses.empty() ? at::Tensor() : at::stack(result.losses)};
    values.insert(values.end(), result.outputs.begin(), result.outputs.end());
    values = broadcast(*world(), values, last_process());
    result.losses = values.front().defined() ? values.front().unbind() : std::vector<at::Tensor>();
    result.outputs.assign(values.begin() + 1, values.end());
    if (step.trace) gather_timeline(*world(), processes_, step.start, result.timeline);
  }

  PipelineOptions options_;
  Schedule plan_;                     // only until the training runner has it
  const std::vector<int> processes_;  // of each rank
  const std::vector<Rank> local_ranks_;
  std::unique_ptr<Transport> transport_;
  Failure failure_;
  StageModels models_;
  PlanRunner train_;
  bool trains_ = false;  // the plan has backwards
  std::map<Microbatch, std::unique_ptr<PlanRunner>> forward_;
  TiedParameters tied_;
  std::unique_ptr<Workers> workers_;
  std::unique_ptr<World::Impl::Subscription> others_;  // to their failures
};

Pipeline::Pipeline(const Schedule& schedule, const StageFactory& build, PipelineOptions options)
    : impl_(std::make_unique<Impl>(schedule, build, std::move(options))) {}
Pipeline::~Pipeline() = default;
Pipeline::Pipeline(Pipeline&&) noexcept = default;
Pipeline& Pipeline::operator=(Pipeline&&) noexcept = default;

StepResult Pipeline::step(const Batch& batch, const StepOptions& options) {
  return impl_->step(batch, options);
}
StepResult Pipeline::step(Values inputs, Values targets, const StepOptions& options) {
  return impl_->step({.inputs = std::move(inputs), .targets = std::move(targets)}, options);
}
StepResult Pipeline::eval(const Batch& batch, const EvalOptions& options) {
  return impl_->eval(batch, options);
}
void Pipeline::infer(const Batch& batch, const OutputHandler& on_output, const EvalOptions& options) {
  impl_->infer(batch, on_output, options);
}

void Pipeline::set_handler(Kind kind, Handler handler) {
  impl_->handlers.by_kind.at(static_cast<std::size_t>(kind)) = std::move(handler);
}
void Pipeline::set_overlap_handler(Handler handler) { impl_->handlers.overlap = std::move(handler); }

const Schedule& Pipeline::plan() const { return impl_->plan(); }

StageModel& Pipeline::stage(Stage stage) {
  const auto found = impl_->models().find(stage);
  if (found == impl_->models().end()) {
    throw ArgumentError("there is no stage " + std::to_string(stage) + " in this process");
  }
  return found->second;
}

void Pipeline::train(bool on) {
  for (auto& [stage, model] : impl_->models()) {
    if (model.module) model.module->train(on);
  }
}

std::vector<std::pair<std::string, at::Tensor>> Pipeline::named_parameters() const {
  return pipewright::named_parameters(impl_->models());
}

std::vector<at::Tensor> Pipeline::parameters() const {
  std::vector<at::Tensor> tensors;
  for (auto& [name, parameter] : named_parameters()) tensors.push_back(std::move(parameter));
  return tensors;
}

void Pipeline::zero_grad() {
  for (const at::Tensor& parameter : parameters()) parameter.mutable_grad().reset();
}

at::Tensor Pipeline::grad_norm(double p) const {
  const at::Tensor own = norm_of(impl_->gradients(false), p);
  return impl_->world() ? norm_over(*impl_->world(), own, p) : own;
}

at::Tensor Pipeline::clip_grad_norm(double max_norm, double p) {
  at::Tensor norm = grad_norm(p);
  scale_to_norm(impl_->gradients(true), norm, max_norm);
  return norm;
}

Pipeline::StateDict Pipeline::state_dict() const { return state_of(impl_->models()); }

void Pipeline::load_state_dict(const StateDict& state) {
  const StateDict own = state_dict();
  std::set<std::string> elsewhere;
  if (World* world = impl_->world()) {
    std::string names;
    for (const auto& [name, tensor] : own) names += name + "\n";
    for (const std::string& list : world->all_gather(names)) {
      std::istringstream lines(list);
      for (std::string name; std::getline(lines, name);) elsewhere.insert(name);
    }
  }
  std::string problems = load_problems(state, own, elsewhere);
  if (World* world = impl_->world()) problems = first_error(*world, problems);
  if (!problems.empty()) throw ArgumentError(problems);
  load_state(state, own);
  impl_->tied().share_values();
}

std::map<Stage, std::string> Pipeline::unsplit_stages() const { return impl_->training().unsplit_stages(); }

}  // namespace pipewright
