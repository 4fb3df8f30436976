#include "runtime/executor/plan_runner.h"

#include <utility>

namespace pipewright {

PlanRunner::PlanRunner(Schedule plan, const std::vector<Rank>& local_ranks, Transport& transport,
                       StageModels& models, const Loss& loss, const Handlers& handlers, Failure& failure)
    : plan_(std::move(plan)), transport_(transport), handlers_(handlers), failure_(failure) {
  for (const Rank rank : local_ranks) {
    executors_.push_back(
        std::make_unique<RankExecutor>(plan_, rank, transport, models, loss, handlers, failure));
  }
}

void PlanRunner::run(Step& step, Workers* workers) {
  transport_.begin_step(step.trace);
  step.start = Clock::now();
  if (workers) {
    workers->start([&](std::size_t at) { executors_[at]->run(step); });
    workers->wait();
  } else if (!executors_.empty()) {
    executors_.front()->run(step);
  }
  deliver();
  // Handlers need not take what is sent to the actions that they stand in for.
  if (!failure_.raised() && !handlers_.any()) return;
  for (const auto& executor : executors_) executor->clear();
  transport_.reset();
  failure_.rethrow();
}

void PlanRunner::deliver() {
  if (failure_.raised()) return;
  try {
    if (const std::optional<Undelivered> lost = transport_.end_step()) {
      const ChannelId& channel = lost->channel;
      const Kind kind = channel.carries_gradients() ? Kind::SendB : Kind::SendF;
      failure_.report(channel.from_rank, make_action(channel.from, kind, lost->microbatch), lost->cause);
    }
  } catch (const Stopped&) {
    return;  // another process's failure, reported there
  }
}

Timeline PlanRunner::take_timeline() {
  Timeline timeline{.ranks = {}, .placement = plan_.placement, .microbatches = plan_.microbatches};
  timeline.ranks.resize(plan_.ranks.size());
  for (const auto& executor : executors_) {
    timeline.ranks[static_cast<std::size_t>(executor->rank())] = executor->take_trace();
  }
  return timeline;
}

std::vector<int> PlanRunner::peak_live() const {
  std::vector<int> peaks(plan_.ranks.size());
  for (const auto& executor : executors_) {
    peaks[static_cast<std::size_t>(executor->rank())] = executor->peak_live();
  }
  return peaks;
}

std::map<Stage, std::string> PlanRunner::unsplit_stages() const {
  std::map<Stage, std::string> all;
  for (const auto& executor : executors_) all.merge(executor->unsplit_stages());
  return all;
}

}  // namespace pipewright
