#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "pipewright/schedule/schedule.h"
#include "runtime/executor/rank_executor.h"
#include "runtime/flight/flight_recorder.h"

namespace pipewright {

/// Runs the ranks of one plan that are of this process: on the workers, or on the caller's
/// thread where there is only one.
class PlanRunner {
 public:
  /// All but the plan and the routes are kept by reference and outlive the runner.
  PlanRunner(Schedule plan, const Routes& routes, const Mesh& mesh, Transport& transport,
             ReplicaModels& models, DataParallel& data_parallel, const Loss& loss, const Handlers& handlers,
             FlightRecorder& recorder, Failure& failure);

  const Schedule& plan() const { return plan_; }

  /// `steps`: one for each local replica. Throws StepError; the runner can be used again.
  void run(std::vector<Step>& steps, Workers* workers);

  /// Of the last step; empty, and 0, for ranks of other processes. The timeline is that of replica 0, the
  /// peaks are over all.
  Timeline take_timeline();
  std::vector<int> peak_live() const;

  std::map<Stage, std::string> unsplit_stages() const;

 private:
  /// Waits until what was sent has arrived.
  void deliver();

  const Schedule plan_;
  const Mesh& mesh_;
  Transport& transport_;
  DataParallel& data_parallel_;
  const Handlers& handlers_;
  FlightRecorder& recorder_;
  Failure& failure_;
  std::vector<std::unique_ptr<RankExecutor>> executors_;  // of the local positions
};

}  // namespace pipewright
