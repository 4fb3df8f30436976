#include "runtime/executor/rank_executor.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "pipewright/runtime/errors.h"
#include "runtime/backward/own_weight_gradient.h"
#include "runtime/executor/current_action.h"
#include "runtime/executor/handover.h"

namespace pipewright {
namespace {

double milliseconds_since(Clock::time_point start, Clock::time_point time) {
  return std::chrono::duration<double, std::milli>(time - start).count();
}

void run_collective(Kind kind, StageReplicas& replicas, std::size_t member) {
  if (kind == Kind::Unshard) replicas.unshard(member);
  if (kind == Kind::Reshard) replicas.reshard(member);
  if (kind == Kind::ReduceGrad) replicas.reduce_grad();
}

}  // namespace

/// Records an action from now to its own end and, where the step is traced, the time that it takes. What a
/// handler does belongs to the action that it stands in for.
class RankExecutor::Recorded {
 public:
  Recorded(RankExecutor& executor, std::size_t at)
      : executor_(executor), at_(at), outermost_(executor.running_[at] == kNotRunning) {
    if (!outermost_) return;
    const Clock::time_point now = Clock::now();
    executor.running_[at] =
        executor.recorder_.begin(executor.program_.instructions[at].action, executor.step_->number, now);
    begin_trace(now);
  }
  ~Recorded() {
    if (!outermost_) return;
    const Clock::time_point now = Clock::now();
    executor_.recorder_.end(std::exchange(executor_.running_[at_], kNotRunning), now);
    if (!executor_.step_->trace) return;
    executor_.trace_[at_].end = milliseconds_since(executor_.step_->start, now);
    if (executor_.marks_.empty()) return;
    executor_.marks_[at_].end = mark(executor_.device_, Timed::Yes);
  }
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;

  /// Something that it waits for begins, and has come. Where it does not come, the wait stays one.
  void needs(Need need, Stage from = -1) { executor_.recorder_.needs(executor_.running_[at_], need, from); }
  void has_it() {
    const Clock::time_point now = Clock::now();
    executor_.recorder_.ready(executor_.running_[at_], now);
    begin_trace(now);
  }

 private:
  void begin_trace(Clock::time_point now) {
    if (!executor_.step_->trace) return;
    executor_.trace_[at_].start = milliseconds_since(executor_.step_->start, now);
    if (executor_.marks_.empty()) return;
    executor_.marks_[at_].start = mark(executor_.device_, Timed::Yes);
  }

  RankExecutor& executor_;
  const std::size_t at_;
  const bool outermost_;
};

RankExecutor::RankExecutor(const Schedule& plan, const Routes& routes, Position position,
                           const RankDevices& devices, Transport& transport, StageModels& models,
                           DataParallel& data_parallel, const Loss& loss, const Handlers& handlers,
                           RankRecorder& recorder, Failure& failure)
    : plan_(plan),
      position_(position),
      rank_(position.rank),
      device_(devices.at(position.replica, position.rank)),
      streams_(devices, device_),
      loss_(loss),
      handlers_(handlers),
      recorder_(recorder),
      failure_(failure),
      program_(compile(plan, routes, position, devices, transport)),
      running_(program_.instructions.size(), kNotRunning) {
  for (std::size_t at = 0; at < program_.stages.size(); ++at) {
    const Stage stage = program_.stages[at];
    const StageWays& ways = program_.ways[at];
    locals_.push_back({.stage = stage,
                       .ways = ways,
                       .model = models.at(stage),
                       .replicas = data_parallel.stage(stage),
                       .member = data_parallel.member(position),
                       .inputs = BoundaryCheck(stage, "input"),
                       .outputs = BoundaryCheck(stage, "output"),
                       .held = std::vector<Held>(static_cast<std::size_t>(plan.microbatches), Held(ways)),
                       .memory = {},
                       .unsplit = {}});
  }
}

void RankExecutor::run(Step& step) {
  const c10::OptionalDeviceGuard device(device_.is_cpu() ? std::nullopt : std::optional(device_));
  const c10::OptionalStreamGuard stream(this->stream());
  const at::AutoGradMode grad_mode(step.train);
  begin(step, /*alone=*/true);
  const std::vector<Action>& actions = plan_.ranks[static_cast<std::size_t>(rank_)];
  for (std::size_t at = 0; at < actions.size() && !failure_.raised();) {
    const std::size_t size = cell_size(actions, at);
    run_cell(at, size);
    at += size;
  }
  end();
}

void RankExecutor::begin(Step& step, bool alone) {
  step_ = &step;
  alone_ = alone;
  live_ = 0;
  peak_live_ = 0;
  for (LocalStage& local : locals_) {
    local.inputs.forget();
    local.outputs.forget();
    for (Held& held : local.held) held.lane = Lane::Compute;
  }
  const std::vector<Action>& actions = plan_.ranks[static_cast<std::size_t>(rank_)];
  trace_.clear();
  marks_.clear();
  if (!step.trace) return;
  for (const Action action : actions) trace_.push_back({.action = action});
  if (!device_.is_cpu()) marks_.resize(actions.size());
}

std::vector<TimedAction> RankExecutor::take_trace(const DeviceClock* clock) {
  for (std::size_t at = 0; at < marks_.size(); ++at) {
    const auto [begun, ended] = std::exchange(marks_[at], {});
    if (!clock || !begun || !ended) continue;
    trace_[at].start = clock->milliseconds(*begun);
    trace_[at].end = std::max(trace_[at].start, clock->milliseconds(*ended));
  }
  return std::move(trace_);
}

void RankExecutor::clear() {
  for (LocalStage& local : locals_) {
    for (Held& held : local.held) held = Held(local.ways);
  }
}

void RankExecutor::run_cell(std::size_t at, std::size_t size) {
  if (size == 1) {
    run_guarded(at);
    return;
  }
  if (handlers_.overlap) {
    guarded(at, [&] { run_handler(handlers_.overlap, at, size); });
    return;
  }
  const auto& actions = plan_.ranks[static_cast<std::size_t>(rank_)];
  if (alone_ && independent(std::span(actions).subspan(at, size))) {
    run_overlapped(at, size);
  } else {
    for (std::size_t part = at; part < at + size; ++part) run_guarded(part);
  }
}

void RankExecutor::run_overlapped(std::size_t at, std::size_t size) {
  if (!side_) side_ = std::make_unique<Workers>(program_.parallel_parts, at::get_num_threads());
  choose_lanes(at, size);
  streams_.fork();
  const auto run_part = [this](std::size_t part) {
    const c10::OptionalDeviceGuard device(device_.is_cpu() ? std::nullopt : std::optional(device_));
    const c10::OptionalStreamGuard stream(streams_.of(held(program_.instructions[part]).lane));
    run_guarded(part);
  };
  side_->start([&](std::size_t index) {
    if (index + 1 < size) run_part(at + 1 + index);
  });
  run_part(at);
  side_->wait();
  streams_.join();
}

void RankExecutor::choose_lanes(std::size_t at, std::size_t size) {
  Lane of_backward = Lane::Beside;
  for (std::size_t part = at; part < at + size; ++part) {
    const Instruction& instruction = program_.instructions[part];
    if (instruction.action.kind != Kind::F) of_backward = held(instruction).lane;
  }
  for (std::size_t part = at; part < at + size; ++part) {
    const Instruction& instruction = program_.instructions[part];
    if (instruction.action.kind == Kind::F) held(instruction).lane = other(of_backward);
  }
}

template <typename Run>
void RankExecutor::guarded(std::size_t at, Run run) {
  const Recorded recorded(*this, at);  // until what goes wrong has been reported
  try {
    run();
  } catch (const Stopped&) {
    return;  // another rank's failure, reported there
  } catch (...) {
    failure_.report(position_, program_.instructions[at].action, std::current_exception());
  }
}

void RankExecutor::run_guarded(std::size_t at) {
  guarded(at, [&] {
    const Handler& handler = handlers_.of(program_.instructions[at].action.kind);
    if (handler) {
      run_handler(handler, at, 1);
    } else {
      run_action(at);
    }
  });
}

void RankExecutor::run_handler(const Handler& handler, std::size_t at, std::size_t size) {
  const auto& actions = plan_.ranks[static_cast<std::size_t>(rank_)];
  const auto cell = std::span(actions).subspan(at, size);
  handler({.replica = position_.replica,
           .rank = rank_,
           .cell = cell,
           .plan = plan_,
           .microbatches = step_->microbatches,
           .losses = step_->losses,
           .stage = [this](Stage stage) -> StageModel& {
             LocalStage* local = local_stage(stage);
             if (!local) {
               throw ArgumentError("stage " + std::to_string(stage) + " is not on rank " +
                                   std::to_string(rank_));
             }
             return local->model;
           },
           .run =
               [this, at, size] {
                 for (std::size_t part = at; part < at + size; ++part) run_action(part);
               },
           .run_part =
               [this, at, cell](Action part) {
                 const auto found = std::ranges::find_if(cell, [&](Action each) {
                   return each.kind == part.kind && each.stage == part.stage &&
                          each.microbatch == part.microbatch;
                 });
                 if (found == cell.end()) {
                   throw ArgumentError(to_text(part) + " is not a part of " + cell_text(cell));
                 }
                 run_action(at + static_cast<std::size_t>(found - cell.begin()));
               }});
}

void RankExecutor::run_action(std::size_t at) {
  const Instruction& instruction = program_.instructions[at];
  const Action action = instruction.action;
  Recorded recorded(*this, at);
  const CurrentAction current({action, position_.replica * plan_.microbatches});
  at::RecordFunction range(at::RecordScope::USER_SCOPE);
  if (range.isActive()) range.before("PP:" + to_text(action));

  const auto microbatch = static_cast<Microbatch>(action.microbatch);
  switch (action.kind) {
    case Kind::F: forward(instruction, recorded); break;
    case Kind::B:
    case Kind::I: backward(instruction, recorded); break;
    case Kind::W: weight(instruction, recorded); break;
    case Kind::SendF:
    case Kind::SendB: {
      Held& held = this->held(instruction);
      Values& values = (action.kind == Kind::SendF ? held.to_later : held.to_earlier)[instruction.way];
      instruction.channel->send(microbatch, std::exchange(values, {}), instruction.taken_before);
      break;
    }
    case Kind::RecvF:
    case Kind::RecvB: instruction.channel->post(microbatch); break;  // it ends when the message is taken
    case Kind::Unshard:
    case Kind::Reshard:
    case Kind::ReduceGrad:
    case Kind::Bubble: {
      const LocalStage& local = locals_[instruction.local_stage];
      if (local.replicas) run_collective(action.kind, *local.replicas, local.member);
      break;
    }
  }
  if (measures_memory(action)) trace_[at].held = locals_[instruction.local_stage].memory.end(action.kind);
}

Values RankExecutor::take(const Instruction& instruction, const Way& way, Values& handed_over,
                          Recorded& recorded) {
  if (!way.incoming) return std::exchange(handed_over, {});
  const Stage distance = std::abs(way.peer - Stage{instruction.action.stage});
  recorded.needs(Need::Message, distance > 1 ? way.peer : -1);
  Message message = way.incoming->take(static_cast<Microbatch>(instruction.action.microbatch));
  recorded.has_it();
  if (step_->trace) {
    const std::size_t received = way.receives[instruction.action.microbatch];
    TimedAction& receive = trace_[received];
    receive.end = std::max(receive.start, milliseconds_since(step_->start, message.arrived));
    if (!marks_.empty()) marks_[received].end = message.given ? message.given : mark(device_, Timed::Yes);
  }
  return std::move(message.values);
}

Values RankExecutor::take_inputs(const Instruction& instruction, Recorded& recorded) {
  const StageWays& ways = locals_[instruction.local_stage].ways;
  Held& held = this->held(instruction);
  if (ways.earlier.front().all) {
    return take(instruction, ways.earlier.front(), held.inputs.front(), recorded);
  }
  Values inputs(ways.inputs);
  for (std::size_t at = 0; at < ways.earlier.size(); ++at) {
    const Way& way = ways.earlier[at];
    Values values = take(instruction, way, held.inputs[at], recorded);
    // Nothing at all where a handler stands in for what would have computed it.
    for (std::size_t each = 0; each < values.size(); ++each) {
      inputs[way.slots.at(each)] = std::move(values[each]);
    }
  }
  return inputs;
}

Values RankExecutor::take_output_grads(const Instruction& instruction, Recorded& recorded) {
  const StageWays& ways = locals_[instruction.local_stage].ways;
  Held& held = this->held(instruction);
  if (ways.later.front().all) {
    return take(instruction, ways.later.front(), held.output_grads.front(), recorded);
  }
  const at::AutoGradMode no_grad(false);
  Values sums(held.graph.output_count());
  for (std::size_t at = ways.later.size(); at-- > 0;) {
    const Way& way = ways.later[at];
    Values grads = take(instruction, way, held.output_grads[at], recorded);
    if (held.graph.empty()) continue;
    for (std::size_t each = 0; each < grads.size(); ++each) {
      if (!grads[each].defined()) continue;
      at::Tensor& sum = sums.at(way.slots.at(each));
      // A sparse one comes second: only so can it be added to one that is not.
      sum = !sum.defined() ? std::move(grads[each]) : sum.is_sparse() ? grads[each] + sum : sum + grads[each];
    }
  }
  return sums;
}

void RankExecutor::give_outputs(LocalStage& local, std::size_t microbatch, const Values& outputs) {
  check_taken_outputs(local.stage, local.ways, outputs);
  for (std::size_t at = 0; at < local.ways.later.size(); ++at) {
    const Way& way = local.ways.later[at];
    Values values = handed_on(way, outputs, step_->train);
    if (LocalStage* later = local_stage(way.peer)) {
      later->held[microbatch].inputs[way.mirror] = std::move(values);
    } else {
      local.held[microbatch].to_later[at] = std::move(values);
    }
  }
}

void RankExecutor::give_input_grads(LocalStage& local, std::size_t microbatch, const Values& grads) {
  for (std::size_t at = 0; at < local.ways.earlier.size(); ++at) {
    const Way& way = local.ways.earlier[at];
    Values values = way.all ? grads : values_for(way, grads);
    if (LocalStage* earlier = local_stage(way.peer)) {
      earlier->held[microbatch].output_grads[way.mirror] = std::move(values);
    } else {
      local.held[microbatch].to_earlier[at] = std::move(values);
    }
  }
}

void RankExecutor::wait_for_parameters(const LocalStage& local, Recorded& recorded) {
  if (!local.replicas) return;
  recorded.needs(Need::Parameters);
  local.replicas->wait_for_parameters();
  recorded.has_it();
}

void RankExecutor::forward(const Instruction& instruction, Recorded& recorded) {
  LocalStage& local = locals_[instruction.local_stage];
  const auto microbatch = static_cast<Microbatch>(instruction.action.microbatch);
  const MicrobatchValues& brought = step_->microbatches[instruction.action.microbatch];
  Held& held = this->held(instruction);
  const bool first = local.stage == 0;
  Values inputs = first ? brought.inputs : take_inputs(instruction, recorded);
  HeldMemory* const memory = measures_memory(instruction.action) ? local.memory.begin(inputs) : nullptr;
  if (memory && !first) memory->add(inputs);
  const HeldMemory::Watch watch(memory);

  wait_for_parameters(local, recorded);
  if (step_->train) activation_held(+1);
  local.inputs.check(inputs, local.model.inputs);
  // The first stage's inputs are the user's own tensors: they stay as they are.
  if (step_->train && !first) inputs = held.graph.enter(std::move(inputs));
  if (const auto own = brought.stage_inputs.find(local.stage); own != brought.stage_inputs.end()) {
    inputs.insert(inputs.end(), own->second.begin(), own->second.end());
  }
  streams_.take(inputs, held.lane);
  const SharedInputs shared(local.stage, local.ways.shared_inputs, inputs);
  Values outputs = local.model.forward(inputs);
  inputs.clear();
  shared.check_unchanged();
  streams_.give(outputs, held.lane);
  local.outputs.check(outputs, local.model.outputs);
  if (step_->train && local.model.dw_builder) {
    held.dw = local.model.dw_builder();
    if (!held.dw) throw Error("dw_builder returned no function to call at W");
  }

  if (local.stage == plan_.last_stage()) {
    last_forward(local, microbatch, held, std::move(outputs));
    return;
  }
  if (step_->train) held.graph.leave(outputs);
  if (memory) memory->leave_out(outputs);
  give_outputs(local, instruction.action.microbatch, outputs);
}

void RankExecutor::last_forward(LocalStage& local, Microbatch microbatch, Held& held, Values outputs) {
  const auto at = static_cast<std::size_t>(microbatch);
  // Without a loss function the first output is the loss, if it is one number; to train, it must be.
  const bool has_loss =
      step_->with_loss &&
      (loss_ || step_->train || (!outputs.empty() && outputs[0].defined() && outputs[0].numel() == 1));
  if (has_loss) {
    if (!loss_ && outputs.empty()) {
      throw Error("stage " + std::to_string(local.stage) +
                  " returned nothing, and there is no loss function");
    }
    const at::Tensor loss = loss_ ? loss_(outputs, step_->microbatches[at].targets) : outputs.front();
    if (!loss.defined() || loss.numel() != 1) {
      throw Error("a loss must be one number; that of microbatch " + std::to_string(microbatch) + " is " +
                  to_text(loss));
    }
    step_->losses[at] = loss.detach();
    if (step_->train) held.graph.leave({loss});
  }
  if (step_->on_output) {
    for (at::Tensor& output : outputs) {
      if (output.defined()) output = output.detach();
    }
    step_->on_output(microbatch, std::move(outputs));
  }
}

Values RankExecutor::loss_gradient(Microbatch microbatch) {
  const at::Tensor& loss = step_->losses[static_cast<std::size_t>(microbatch)];
  if (!loss_gradient_.defined() || loss_gradient_.scalar_type() != loss.scalar_type() ||
      loss_gradient_.sizes() != loss.sizes() || loss_gradient_.device() != loss.device()) {
    loss_gradient_ = at::full(loss.sizes(), step_->grad_scale, loss.options().requires_grad(false));
  }
  return {loss_gradient_};
}

void RankExecutor::backward(const Instruction& instruction, Recorded& recorded) {
  LocalStage& local = locals_[instruction.local_stage];
  Held& held = this->held(instruction);
  const RankStreams::On stream(streams_, held.lane);
  const bool full = instruction.action.kind == Kind::B;
  const bool last = local.stage == plan_.last_stage();
  const Values output_grads = last ? loss_gradient(static_cast<Microbatch>(instruction.action.microbatch))
                                   : take_output_grads(instruction, recorded);
  HeldMemory* const memory = measures_memory(instruction.action) ? local.memory.begun() : nullptr;
  if (memory && !last) memory->add(output_grads);
  const HeldMemory::Watch watch(full ? nullptr : memory);

  wait_for_parameters(local, recorded);
  const StageGraph graph = std::exchange(held.graph, {});
  Values input_grads;
  if (full || held.dw || !local.model.split_backward) {
    input_grads = run_full_backward(graph, output_grads);
    if (!full && !held.dw) local.unsplit = "split_backward is false";
    if (memory && (full || !held.dw)) *memory = {};  // nothing is left
  } else {
    input_grads = run_input_backward(graph, output_grads, held.weight);
    if (!held.weight.roots.empty() && !held.weight.separated) {
      local.unsplit = "none of its operators computes weight gradients apart from input gradients";
    }
  }
  if (full) {
    if (held.dw) run_own_weight_gradient(local.model, std::exchange(held.dw, nullptr));
    activation_held(-1);
  }

  streams_.give(input_grads, held.lane);
  if (memory) memory->leave_out(input_grads);
  give_input_grads(local, instruction.action.microbatch, input_grads);
}

void RankExecutor::weight(const Instruction& instruction, Recorded& recorded) {
  const LocalStage& local = locals_[instruction.local_stage];
  Held& held = this->held(instruction);
  const RankStreams::On stream(streams_, held.lane);
  wait_for_parameters(local, recorded);
  run_weight_backward(std::exchange(held.weight, {}));
  if (held.dw) run_own_weight_gradient(local.model, std::exchange(held.dw, nullptr));
  activation_held(-1);
}

std::map<Stage, std::string> RankExecutor::unsplit_stages() const {
  std::map<Stage, std::string> unsplit;
  for (const LocalStage& local : locals_) {
    if (!local.unsplit.empty()) unsplit[local.stage] = local.unsplit;
  }
  return unsplit;
}

RankExecutor::LocalStage* RankExecutor::local_stage(Stage stage) {
  const std::int32_t local =
      stage < 0 || stage >= plan_.stage_count() ? -1 : program_.local_index[static_cast<std::size_t>(stage)];
  return local < 0 ? nullptr : &locals_[static_cast<std::size_t>(local)];
}

bool RankExecutor::measures_memory(Action action) const {
  return step_->trace && step_->train && action.microbatch == 0 &&
         (action.kind == Kind::F || gives_input_grad(action.kind));
}

void RankExecutor::activation_held(int change) {
  const int now = live_ += change;
  int peak = peak_live_;
  while (now > peak && !peak_live_.compare_exchange_weak(peak, now)) {
  }
}

}  // namespace pipewright
