#include "pipewright/runtime/pipeline.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "pipewright/runtime/update.h"
#include "pipewright/schedule/deadlock.h"
#include "pipewright/schedule/generate.h"
#include "pipewright/schedule/validate.h"
#include "runtime/collective/data_parallel.h"
#include "runtime/device/rank_devices.h"
#include "runtime/executor/captured_steps.h"
#include "runtime/executor/plan_runner.h"
#include "runtime/executor/update_tail.h"
#include "runtime/flight/flight_recorder.h"
#include "runtime/flight/settlement.h"
#include "runtime/optim/non_finite.h"
#include "runtime/optim/norm.h"
#include "runtime/optim/parameters.h"
#include "runtime/optim/tied.h"
#include "runtime/transport/c10d.h"
#include "runtime/transport/inproc.h"
#include "runtime/world/agreement.h"
#include "runtime/world/mesh.h"
#include "runtime/world/remote_failure.h"
#include "runtime/world/results.h"
#include "runtime/world/world_impl.h"

namespace pipewright {
namespace {

/// A plan that is proven to run to its end, from a schedule in either format.
Schedule checked_plan(Schedule schedule, const Routes& routes, const LowerOptions& options) {
  schedule.skips = skips_of(routes, schedule.stage_count());
  Schedule plan = is_lowered(schedule) ? std::move(schedule) : lower(std::move(schedule), options);
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

}  // namespace

class Pipeline::Impl {
 public:
  Impl(const Schedule& schedule, const StageFactory& build, PipelineOptions options)
      : options_(std::move(options)),
        plan_(checked_plan(schedule, options_.routes, options_.lower)),
        mesh_(plan_.rank_count(), options_.data_parallel, world() ? world()->rank() : 0,
              world() ? world()->size() : 1, options_.processes),
        recorder_(plan_, mesh_, world() ? world()->size() : 1),
        settlement_(world(), recorder_, options_.flight_record),
        failure_(
            mesh_.replicas(), [this] { end_waits(); },
            [this](const StepError& noticed) { return settlement_.settle(noticed); }),
        models_(build_models(build)),
        data_parallel_(agreed_mesh(), plan_, models_, options_),
        devices_(rank_devices()),
        transport_(make_transport()),
        train_(make_runner(std::move(plan_), failure_)),
        tied_(options_, parameters()) {
    if (world()) {
      others_ = world()->impl().observe(
          {.describe = [this] { return settlement_.describe(); },
           .failed = [this](const std::string& word) { failure_.report_remote(settlement_.heard(word)); }});
    }
    tied_.share_values();
    for (const std::vector<Action>& actions : plan().ranks) {
      trains_ |= std::ranges::any_of(actions, [](Action action) { return gives_weight_grad(action.kind); });
    }
    if (options_.threads_per_rank == 0) {
      const auto ranks = static_cast<int>(mesh_.local().size());
      options_.threads_per_rank = std::max(1, at::get_num_threads() / std::max(1, ranks));
    }
    if (mesh_.local().size() > 1) {
      workers_ = std::make_unique<Workers>(mesh_.local().size(), options_.threads_per_rank);
    }
    if (options_.cuda_graph) prepare_capture();
    // Connecting needs rank 0; from the first step on nobody does.
    if (world()) world()->all_gather({});
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
    const Results wanted{denominator, options.outputs, options.everywhere};
    if (captured_) captured_->keep_gradients();
    std::optional<CapturedSteps::Tail> tail = tail_of(options);
    StepResult result;
    {
      const World::Impl::Patience patience(world(), options_.timeout);
      result = options.non_finite == NonFinite::GoOn ? accumulate(step, batch, wanted, tail)
                                                     : accumulate_finite(step, batch, wanted, options, tail);
    }
    if (options.update && !tail && result.skipped_for.empty()) {
      options.update->prepare();
      options.update->apply({});
    }
    return result;
  }

  StepResult eval(const Batch& batch, const EvalOptions& options) {
    Step step;
    PlanRunner& runner = forward_runner(prepare_forward(batch, options, step));
    const double denominator = denominator_of(options.denominator, runner.plan().microbatches);
    const World::Impl::Patience patience(world(), options_.timeout);
    std::optional<CapturedSteps::Tail> none;
    return run(runner, step, batch, {denominator, options.outputs, options.everywhere}, none);
  }

  void infer(const Batch& batch, const OutputHandler& on_output, const EvalOptions& options) {
    Step step;
    PlanRunner& runner = forward_runner(prepare_forward(batch, options, step));
    std::mutex one_at_a_time;
    step.on_output = [&](Microbatch microbatch, Values values) {
      const std::lock_guard lock(one_at_a_time);
      on_output(microbatch, std::move(values));
    };
    const World::Impl::Patience patience(world(), options_.timeout);
    std::optional<CapturedSteps::Tail> none;
    run(runner, step, batch, {.denominator = 1, .keep_outputs = false, .everywhere = false}, none);
  }

  World* world() const { return options_.world.get(); }
  const Schedule& plan() const { return train_->plan(); }
  /// By replica.
  ReplicaModels& models() { return models_; }
  const Mesh& mesh() const { return mesh_; }
  const TiedParameters& tied() const { return tied_; }
  const PlanRunner& training() const { return *train_; }

  std::vector<LocalParameter> parameters() const {
    if (mesh_.local().empty()) return {};
    if (mesh_.replicas() == 1) return whole_parameters(models_.begin()->second);
    std::vector<LocalParameter> all;
    for (const auto& [stage, replicas] : data_parallel_.stages()) {
      for (LocalParameter& each : replicas->parameters()) all.push_back(std::move(each));
    }
    return all;
  }

  enum class Gradients { All, EachOnce };
  /// `EachOnce`: over all processes, every element of the whole model's gradient once.
  std::vector<at::Tensor> gradients(Gradients which) const {
    std::vector<at::Tensor> grads;
    for (const LocalParameter& each : parameters()) {
      if (!each.tensor.grad().defined()) continue;
      if (which == Gradients::All || (each.counts && !tied_.is_copy(each.name))) {
        grads.push_back(each.tensor.grad());
      }
    }
    return grads;
  }

  StateDict state() {
    StateDict all;
    // Those of an earlier replica stay.
    for (const auto& [replica, models] : models_) all.merge(state_of(models));
    together([&] {
      for (const auto& [stage, replicas] : data_parallel_.stages()) replicas->gather_state(all);
    });
    return all;
  }

  /// REQUIRES: there are no problems with the state.
  void load(const StateDict& state) {
    for (const auto& [replica, models] : models_) {
      StateDict own = state_of(models);
      for (const auto& [stage, replicas] : data_parallel_.stages()) replicas->load_state(state, own);
      load_state(state, own);
    }
    together([this] { tied_.share_values(); });
  }

  std::int64_t skipped() const { return skipped_; }

  const std::string& not_captured_for() const { return captured_ ? captured_->refusal() : not_captured_for_; }

  std::filesystem::path write_flight_record(const std::string& because) const {
    ProcessRecord record = settlement_.describe();
    record.because = because;
    return write_record(record, options_.flight_record);
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

  /// Of a step's graph, where nothing has to be done on the host between the gradients and the update.
  std::optional<CapturedSteps::Tail> tail_of(const StepOptions& options) {
    if (!captured_ || !options.update || !tied_.empty() || captured_->has_gradients()) return std::nullopt;
    return make_tail(*options.update, options.non_finite != NonFinite::GoOn,
                     [this] { return gradients(Gradients::All); });
  }

  /// A step, with what belongs to its gradients. `tail`: none any more where it was not run.
  StepResult accumulate(const Step& step, const Batch& batch, const Results& wanted,
                        std::optional<CapturedSteps::Tail>& tail) {
    tied_.before_step();
    StepResult result = run(*train_, step, batch, wanted, tail);
    together([this] { tied_.after_step(); });
    return result;
  }

  /// The same, but without the gradients of a step whose numbers are not all finite.
  StepResult accumulate_finite(const Step& step, const Batch& batch, const Results& wanted,
                               const StepOptions& options, std::optional<CapturedSteps::Tail>& tail) {
    GradientsAside earlier(parameters());
    StepResult result = accumulate(step, batch, wanted, tail);
    const at::Tensor telling =
        tail ? tail->result : telling_numbers(result.losses, gradients(Gradients::All));
    result.skipped_for = what_is_not_finite(telling, result.losses.size(), parameters(), plan().placement);
    if (world()) together([&] { result.skipped_for = first_error(*world(), result.skipped_for); });
    if (result.skipped_for.empty()) {
      earlier.keep_new();
      return result;
    }
    ++skipped_;
    if (tail) options.update->revert();
    if (options.non_finite == NonFinite::Stop) throw NonFiniteError(result.skipped_for);
    return result;
  }

  ReplicaModels build_models(const StageFactory& build) const {
    if (!options_.devices.empty() && options_.devices.size() != plan_.ranks.size()) {
      throw ArgumentError("there are " + std::to_string(options_.devices.size()) + " devices for " +
                          std::to_string(plan_.ranks.size()) + " ranks");
    }
    ReplicaModels models;
    for (const int replica : mesh_.local_replicas()) {
      // In the order of the stages, so that what a factory draws at random does not depend on the placement.
      for (Stage stage = 0; stage < plan_.stage_count(); ++stage) {
        const Rank rank = plan_.placement[static_cast<std::size_t>(stage)];
        if (mesh_.process_of({replica, rank}) != mesh_.own_process()) continue;
        const StageModel& model = models[replica].emplace(stage, build(stage)).first->second;
        if (model.module && !options_.devices.empty())
          model.module->to(options_.devices.at(static_cast<std::size_t>(rank)));
      }
    }
    return models;
  }

  RankDevices rank_devices() const {
    // Replicas sum their gradients on the streams that their threads have.
    RankDevices devices{.own_streams = mesh_.replicas() == 1};
    for (const auto& [replica, models] : models_) {
      devices.add(replica, models, plan_.placement, options_.devices);
    }
    return devices;
  }

  std::unique_ptr<Transport> make_transport() const {
    if (!world()) return make_inproc_transport(options_.timeout);
    return make_c10d_transport(*world(), mesh_, plan_, open_carriers(*world(), mesh_, plan_, devices_),
                               options_.timeout);
  }

  std::unique_ptr<PlanRunner> make_runner(Schedule plan, Failure& failure) {
    return std::make_unique<PlanRunner>(std::move(plan), options_.routes, mesh_, devices_, *transport_,
                                        models_, data_parallel_, options_.loss, handlers, recorder_, failure);
  }

  void prepare_capture() {
    not_captured_for_ = what_forbids_capture(devices_, mesh_.replicas(), world() != nullptr);
    if (!not_captured_for_.empty()) return;
    recording_ = make_runner(plan(), recording_failure_);
    captured_ = std::make_unique<CapturedSteps>(devices_.at(0, 0), models_.begin()->second, handlers, *train_,
                                                *recording_);
  }

  /// Before the replicas exchange anything: the same in all processes.
  const Mesh& agreed_mesh() const {
    for (const auto& [replica, models] : models_) state_of(models);  // names are distinct
    if (world()) check_agreement(*world(), plan_, mesh_, options_, models_);
    return mesh_;
  }

  /// Runs what waits for other processes; throws StepError where one of them has failed.
  template <typename Run>
  void together(Run run) {
    try {
      run();
    } catch (const Stopped&) {
      failure_.rethrow();
      throw Error("the world is over: start its processes again");
    } catch (const StepError&) {
      failure_.rethrow();  // the same, with where its record is
      throw;
    } catch (const TimeoutError&) {
      throw_settled();
    } catch (const ConnectionError&) {
      throw_settled();
    }
  }

  /// What the exception that is being handled, of the process as a whole, comes from.
  void throw_settled() {
    failure_.report({-1, -1}, Action{}, std::current_exception());
    failure_.rethrow();
  }

  void end_waits() {
    transport_->abort();
    data_parallel_.abort();
    tied_.abort();
  }

  /// The process of a replica's last stage, where its losses and outputs are.
  int last_process(int replica) const { return mesh_.process_of({replica, plan().placement.back()}); }

  double denominator_of(const std::optional<double>& given, Microbatch microbatches) const {
    const double denominator = given.value_or(microbatches * mesh_.replicas());
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
    if (batch.microbatches.empty()) return plan().microbatches;
    const auto replicas = static_cast<Microbatch>(mesh_.local_replicas().size());
    return static_cast<Microbatch>(batch.microbatches.size()) / std::max<Microbatch>(1, replicas);
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
    runner = make_runner(checked_plan(forwards, options_.routes, options_.lower), failure_);
    return *runner;
  }

  /// Cuts the batch. What is wrong with it here the others must hear of, too.
  std::vector<MicrobatchValues> split(const Batch& batch, Microbatch microbatches) const {
    try {
      return split_batch(batch, options_.split, microbatches);
    } catch (const std::exception& error) {
      if (world()) {
        world()->impl().settle(
            {Notice::Kind::Thrown, "process " + std::to_string(world()->rank()) + ": " + error.what()});
      }
      throw;
    }
  }

  void run_eagerly(PlanRunner& runner, std::vector<Step>& steps) {
    if (workers_) {
      runner.run(steps, workers_.get());
    } else if (!steps.empty()) {
      const ThreadCount threads(options_.threads_per_rank);
      runner.run(steps, nullptr);
    }
  }

  StepResult run(PlanRunner& runner, const Step& like, const Batch& batch, const Results& wanted,
                 std::optional<CapturedSteps::Tail>& tail) {
    if (world()) {
      if (const std::optional<std::string> word = world()->impl().failure()) throw remote_failure(*word);
    }
    settlement_.begin_step();
    const FlightRecorder::InStep in_step(recorder_);
    std::vector<Values> outputs;
    std::vector<Step> steps = make_steps(runner, like, batch, wanted.keep_outputs ? &outputs : nullptr);
    if (world() && like.trace) {
      together([this] { world()->all_gather({}); });  // so that all start at the same time
    }
    CapturedSteps::Ran captured = CapturedSteps::Ran::NotAtAll;
    if (captured_ && like.train && !like.trace) {
      captured = captured_->run(steps.front(), tail ? &*tail : nullptr);
    }
    if (captured == CapturedSteps::Ran::NotAtAll) {
      tail.reset();
      run_eagerly(runner, steps);
    }

    const at::AutoGradMode no_grad(false);
    StepResult result;
    for (Step& step : steps) {
      if (!step.losses.front().defined()) continue;
      for (const at::Tensor& loss : step.losses) {
        result.losses.push_back(loss.dim() == 0 ? loss : loss.reshape({}));
      }
    }
    std::erase_if(outputs, [](const Values& values) { return values.empty(); });
    if (like.trace) result.timeline = runner.take_timeline();
    if (world() && wanted.everywhere) {
      together([&] {
        share(result, outputs, runner.plan().microbatches);
        if (like.trace) share_timeline(result.timeline, steps);
      });
    }
    if (!outputs.empty()) result.outputs = merge_outputs(outputs, options_.merge);
    if (!result.losses.empty()) result.loss = at::stack(result.losses).sum().div_(wanted.denominator);
    result.peak_live = runner.peak_live();
    result.replayed = captured == CapturedSteps::Ran::Replayed;
    return result;
  }

  /// A step for each local replica, with its part of the batch. `outputs`, if given, get those of all of
  /// them.
  std::vector<Step> make_steps(const PlanRunner& runner, const Step& like, const Batch& batch,
                               std::vector<Values>* outputs) const {
    const Microbatch microbatches = runner.plan().microbatches;
    const std::vector<int>& replicas = mesh_.local_replicas();
    if (replicas.empty()) return {};
    std::vector<MicrobatchValues> brought =
        split(batch, microbatches * static_cast<Microbatch>(replicas.size()));
    if (outputs) outputs->resize(brought.size());
    std::vector<Step> steps;
    auto next = brought.begin();
    for (const int replica : replicas) {
      Step& step = steps.emplace_back(like);
      const Microbatch first_here = microbatches * static_cast<Microbatch>(steps.size() - 1);
      if (outputs) {
        step.on_output = [outputs, first_here](Microbatch microbatch, Values values) {
          const Microbatch at = first_here + microbatch;
          (*outputs)[static_cast<std::size_t>(at)] = std::move(values);
        };
      } else if (like.on_output) {
        step.on_output = [&like, first = replica * microbatches](Microbatch microbatch, Values values) {
          like.on_output(first + microbatch, std::move(values));
        };
      }
      step.microbatches.assign(std::make_move_iterator(next), std::make_move_iterator(next + microbatches));
      next += microbatches;
      step.losses.resize(static_cast<std::size_t>(microbatches));
    }
    return steps;
  }

  /// Gives every process the losses and outputs of all replicas.
  void share(StepResult& result, std::vector<Values>& outputs, Microbatch microbatches) const {
    std::vector<int> roots;
    roots.reserve(static_cast<std::size_t>(mesh_.replicas()));
    for (int replica = 0; replica < mesh_.replicas(); ++replica) roots.push_back(last_process(replica));
    share_results(*world(), roots, static_cast<std::size_t>(microbatches), result.losses, outputs);
  }

  void share_timeline(Timeline& timeline, const std::vector<Step>& steps) const {
    std::vector<int> processes;
    processes.reserve(static_cast<std::size_t>(mesh_.ranks()));
    for (Rank rank = 0; rank < mesh_.ranks(); ++rank) processes.push_back(mesh_.process_of({0, rank}));
    gather_timeline(*world(), processes, steps.empty() ? Clock::now() : steps.front().start, timeline);
  }

  PipelineOptions options_;
  Schedule plan_;  // only until the training runner has it
  const Mesh mesh_;
  FlightRecorder recorder_;
  Settlement settlement_;
  Failure failure_;
  ReplicaModels models_;
  DataParallel data_parallel_;
  RankDevices devices_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<PlanRunner> train_;
  TiedParameters tied_;
  bool trains_ = false;  // the plan has backwards
  std::int64_t skipped_ = 0;
  std::map<Microbatch, std::unique_ptr<PlanRunner>> forward_;
  std::unique_ptr<Workers> workers_;
  std::string not_captured_for_;  // nor ever can be
  // A step that cannot be recorded ends no waits of others.
  Failure recording_failure_{1, [] {}, [](const StepError& error) { return error; }};
  std::unique_ptr<PlanRunner> recording_;
  std::unique_ptr<CapturedSteps> captured_;            // null where none are
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
  for (auto& [replica, models] : impl_->models()) {
    const auto found = models.find(stage);
    if (found != models.end()) return found->second;
  }
  throw ArgumentError("there is no stage " + std::to_string(stage) + " in this process");
}

std::vector<int> Pipeline::replicas() const { return impl_->mesh().local_replicas(); }

void Pipeline::train(bool on) {
  for (auto& [replica, models] : impl_->models()) {
    for (auto& [stage, model] : models) {
      if (model.module) model.module->train(on);
    }
  }
}

std::vector<LocalParameter> Pipeline::local_parameters() const { return impl_->parameters(); }

std::vector<std::pair<std::string, at::Tensor>> Pipeline::named_parameters() const {
  std::vector<std::pair<std::string, at::Tensor>> named;
  for (LocalParameter& each : impl_->parameters()) {
    named.emplace_back(std::move(each.name), std::move(each.tensor));
  }
  return named;
}

std::vector<at::Tensor> Pipeline::parameters() const {
  std::vector<at::Tensor> tensors;
  for (LocalParameter& each : impl_->parameters()) tensors.push_back(std::move(each.tensor));
  return tensors;
}

std::vector<LocalParameter> Pipeline::local_buffers() const {
  std::vector<LocalParameter> all;
  for (const auto& [replica, models] : impl_->models()) {
    for (const auto& [stage, model] : models) {
      if (!model.module) continue;
      for (const auto& item : model.module->named_buffers()) {
        all.push_back({.name = global_name(stage, model, item.key()),
                       .tensor = item.value(),
                       .sizes = item.value().sizes().vec(),
                       .counts = replica == 0,
                       .stage = stage});
      }
    }
  }
  return all;
}

void Pipeline::zero_grad() {
  for (const at::Tensor& parameter : parameters()) parameter.mutable_grad().reset();
}

at::Tensor Pipeline::grad_norm(double p) const {
  const at::Tensor own = norm_of(impl_->gradients(Impl::Gradients::EachOnce), p);
  return impl_->world() ? norm_over(*impl_->world(), own, p) : own;
}

at::Tensor Pipeline::clip_grad_norm(double max_norm, double p) {
  at::Tensor norm = grad_norm(p);
  scale_to_norm(impl_->gradients(Impl::Gradients::All), norm, max_norm);
  return norm;
}

Pipeline::StateDict Pipeline::state_dict() const { return impl_->state(); }

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
  impl_->load(state);
}

std::int64_t Pipeline::skipped_steps() const { return impl_->skipped(); }

std::filesystem::path Pipeline::write_flight_record(const std::string& because) const {
  return impl_->write_flight_record(because);
}

std::string Pipeline::not_captured_for() const { return impl_->not_captured_for(); }

std::map<Stage, std::string> Pipeline::unsplit_stages() const { return impl_->training().unsplit_stages(); }

}  // namespace pipewright
