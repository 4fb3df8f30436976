#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "pipewright/schedule/schedule.h"
#include "runtime/executor/rank_executor.h"

namespace pipewright {

/// Runs the ranks of one plan that are of this process: on the workers, or on the caller's
/// thread where there is only one.
class PlanRunner {
 public:
  /// All but the plan are kept by reference and outlive the runner.
  PlanRunner(Schedule plan, const std::vector<Rank>& local_ranks, Transport& transport, StageModels& models,
             const Loss& loss, const Handlers& handlers, Failure& failure);

  const Schedule& plan() const { return plan_; }

  /// Throws StepError; the runner can be used again.
  void run(Step& step, Workers* workers);

  /// Of the last step; empty, and 0, for ranks of other processes.
  Timeline take_timeline();
  std::vector<int> peak_live() const;

  std::map<Stage, std::string> unsplit_stages() const;

 private:
  /// Waits until what was sent has arrived.
  void deliver();

  const Schedule plan_;
  Transport& transport_;
  const Handlers& handlers_;
  Failure& failure_;
  std::vector<std::unique_ptr<RankExecutor>> executors_;  // of the local ranks
};

}  // namespace pipewright
