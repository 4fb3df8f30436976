#include "runtime/executor/plan_runner.h"

#include <algorithm>
#include <utility>

namespace pipewright {

PlanRunner::PlanRunner(Schedule plan, const Routes& routes, const Mesh& mesh, Transport& transport,
                       ReplicaModels& models, DataParallel& data_parallel, const Loss& loss,
                       const Handlers& handlers, FlightRecorder& recorder, Failure& failure)
    : plan_(std::move(plan)),
      mesh_(mesh),
      transport_(transport),
      data_parallel_(data_parallel),
      handlers_(handlers),
      recorder_(recorder),
      failure_(failure) {
  for (const Position position : mesh.local()) {
    executors_.push_back(std::make_unique<RankExecutor>(plan_, routes, position, transport,
                                                        models.at(position.replica), data_parallel, loss,
                                                        handlers, recorder.rank(position), failure));
  }
}

void PlanRunner::run(std::vector<Step>& steps, Workers* workers) {
  transport_.begin_step(steps.front().trace);
  data_parallel_.begin_step();
  const Clock::time_point start = Clock::now();
  for (Step& step : steps) {
    step.start = start;
    step.number = recorder_.step();
  }
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
  deliver();
  if (!failure_.raised()) data_parallel_.end_step(failure_);
  // Handlers need not take what is sent to the actions that they stand in for.
  if (!failure_.raised() && !handlers_.any()) return;
  for (const auto& executor : executors_) executor->clear();
  if (failure_.raised()) data_parallel_.drop_step();
  transport_.reset();
  failure_.rethrow();
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
  for (const auto& executor : executors_) {
    const Position position = executor->position();
    if (position.replica == 0)
      timeline.ranks[static_cast<std::size_t>(position.rank)] = executor->take_trace();
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
