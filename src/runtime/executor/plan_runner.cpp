#include "runtime/executor/plan_runner.h"

#include <utility>

namespace pipewright {

PlanRunner::PlanRunner(Schedule plan, Transport& transport, StageModels& models, const Loss& loss,
                       const Handlers& handlers, Failure& failure)
    : plan_(std::move(plan)), transport_(transport), handlers_(handlers), failure_(failure) {
  for (Rank rank = 0; rank < plan_.rank_count(); ++rank) {
    executors_.push_back(
        std::make_unique<RankExecutor>(plan_, rank, transport, models, loss, handlers, failure));
  }
}

void PlanRunner::run(Step& step, Workers* workers) {
  transport_.trace(step.trace);
  step.start = Clock::now();
  if (workers) {
    workers->start([&](std::size_t rank) { executors_[rank]->run(step); });
    workers->wait();
  } else {
    executors_.front()->run(step);
  }
  // Handlers need not take what is sent to the actions that they stand in for.
  if (!failure_.raised() && !handlers_.any()) return;
  for (const auto& executor : executors_) executor->clear();
  transport_.reset();
  failure_.rethrow();
}

Timeline PlanRunner::take_timeline() {
  Timeline timeline{.ranks = {}, .placement = plan_.placement, .microbatches = plan_.microbatches};
  for (const auto& executor : executors_) timeline.ranks.push_back(executor->take_trace());
  return timeline;
}

std::vector<int> PlanRunner::peak_live() const {
  std::vector<int> peaks;
  peaks.reserve(executors_.size());
  for (const auto& executor : executors_) peaks.push_back(executor->peak_live());
  return peaks;
}

std::map<Stage, std::string> PlanRunner::unsplit_stages() const {
  std::map<Stage, std::string> all;
  for (const auto& executor : executors_) all.merge(executor->unsplit_stages());
  return all;
}

}  // namespace pipewright
