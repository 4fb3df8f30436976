#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "pipewright/schedule/schedule.h"
#include "runtime/executor/rank_executor.h"

namespace pipewright {

/// Runs all local ranks of one plan: on the workers, or on the caller's thread where
/// there is only one rank.
class PlanRunner {
 public:
  /// All but the plan are kept by reference and outlive the runner.
  PlanRunner(Schedule plan, Transport& transport, StageModels& models, const Loss& loss,
             const Handlers& handlers, Failure& failure);

  const Schedule& plan() const { return plan_; }

  /// Throws StepError; the runner can be used again.
  void run(Step& step, Workers* workers);

  /// Of the last step.
  Timeline take_timeline();
  std::vector<int> peak_live() const;

  std::map<Stage, std::string> unsplit_stages() const;

 private:
  const Schedule plan_;
  Transport& transport_;
  const Handlers& handlers_;
  Failure& failure_;
  std::vector<std::unique_ptr<RankExecutor>> executors_;
};

}  // namespace pipewright
