#include "runtime/executor/plan_runner.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

namespace pipewright {

PlanRunner::PlanRunner(Schedule plan, const Routes& routes, const Mesh& mesh, const RankDevices& devices,
                       Transport& transport, ReplicaModels& models, DataParallel& data_parallel,
                       const Loss& loss, const Handlers& handlers, FlightRecorder& recorder, Failure& failure)
    : plan_(std::move(plan)),
      mesh_(mesh),
      transport_(transport),
      data_parallel_(data_parallel),
      handlers_(handlers),
      recorder_(recorder),
      failure_(failure) {
  for (const Position position : mesh.local()) {
    executors_.push_back(std::make_unique<RankExecutor>(plan_, routes, position, devices, transport,
                                                        models.at(position.replica), data_parallel, loss,
                                                        handlers, recorder.rank(position), failure));
  }
}

void PlanRunner::run(std::vector<Step>& steps, Workers* workers) {
  begin(steps);
  fork_streams();
  const auto run_at = [&](std::size_t at) {
    RankExecutor& executor = *executors_[at];
    const auto replica = std::ranges::find(mesh_.local_replicas(), executor.position().replica);
    executor.run(steps[static_cast<std::size_t>(replica - mesh_.local_replicas().begin())]);
  };
  if (workers) {
    workers->start(run_at);
    workers->wait();
  } else if (!executors_.empty()) {
    run_at(0);
  }
  join_streams();
  end();
}

void PlanRunner::run_serially(Step& step) {
  begin({&step, 1});
  if (serial_.empty()) serial_ = serial_order(plan_);
  {
    const at::AutoGradMode grad_mode(step.train);
    for (const auto& executor : executors_) executor->begin(step, /*alone=*/false);
    for (const Turn& turn : serial_) {
      if (failure_.raised()) break;
      executors_[static_cast<std::size_t>(turn.rank)]->run_cell(turn.at, turn.size);
    }
    for (const auto& executor : executors_) executor->end();
  }
  end();
}

void PlanRunner::begin(std::span<Step> steps) {
  transport_.begin_step(steps.front().trace);
  data_parallel_.begin_step();
  start_ = Clock::now();
  clocks_.clear();
  for (Step& step : steps) {
    step.start = start_;
    step.number = recorder_.step();
  }
  if (!steps.front().trace) return;
  for (const auto& executor : executors_) {
    const c10::Device device = executor->device();
    if (!device.is_cpu()) clocks_.try_emplace(device, device);
  }
}

void PlanRunner::end() {
  deliver();
  if (!failure_.raised()) data_parallel_.end_step(failure_);
  // Handlers need not take what is sent to the actions that they stand in for.
  if (!failure_.raised() && !handlers_.any()) return;
  for (const auto& executor : executors_) executor->clear();
  if (failure_.raised()) data_parallel_.drop_step();
  transport_.reset();
  failure_.rethrow();
}

void PlanRunner::fork_streams() const {
  for (const auto& executor : executors_) {
    if (const auto stream = executor->stream()) wait_for(*stream, current_stream(executor->device()));
  }
}

void PlanRunner::join_streams() const {
  for (const auto& executor : executors_) {
    if (const auto stream = executor->stream()) wait_for(current_stream(executor->device()), *stream);
  }
}

void PlanRunner::deliver() {
  if (failure_.raised()) return;
  try {
    if (const std::optional<Undelivered> lost = transport_.end_step()) {
      const ChannelId& channel = lost->channel;
      const Kind kind = channel.carries_gradients() ? Kind::SendB : Kind::SendF;
      failure_.report({channel.replica, channel.from_rank},
                      make_message(channel.from, kind, lost->microbatch, channel.to), lost->cause);
    }
  } catch (const Stopped&) {
    return;  // another process's failure, reported there
  }
}

Timeline PlanRunner::take_timeline() {
  Timeline timeline{
      .ranks = {}, .placement = plan_.placement, .microbatches = plan_.microbatches, .skips = plan_.skips};
  timeline.ranks.resize(plan_.ranks.size());
  for (auto& [device, clock] : clocks_) clock.compare(start_);
  for (const auto& executor : executors_) {
    const Position position = executor->position();
    if (position.replica != 0) continue;
    const auto clock = clocks_.find(executor->device());
    timeline.ranks[static_cast<std::size_t>(position.rank)] =
        executor->take_trace(clock == clocks_.end() ? nullptr : &clock->second);
  }
  return timeline;
}

std::vector<int> PlanRunner::peak_live() const {
  std::vector<int> peaks(plan_.ranks.size());
  for (const auto& executor : executors_) {
    int& peak = peaks[static_cast<std::size_t>(executor->position().rank)];
    peak = std::max(peak, executor->peak_live());
  }
  return peaks;
}

std::map<Stage, std::string> PlanRunner::unsplit_stages() const {
  std::map<Stage, std::string> all;
  for (const auto& executor : executors_) all.merge(executor->unsplit_stages());
  return all;
}

}  // namespace pipewright
