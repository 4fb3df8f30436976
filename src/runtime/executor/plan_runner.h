#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "pipewright/schedule/schedule.h"
#include "runtime/device/device_clock.h"
#include "runtime/executor/rank_executor.h"
#include "runtime/executor/serial_order.h"
#include "runtime/flight/flight_recorder.h"

namespace pipewright {

/// Runs the ranks of one plan that are of this process: on the workers, or on the caller's
/// thread where there is only one.
class PlanRunner {
 public:
  /// All but the plan, the routes and the devices are kept by reference and outlive the runner.
  PlanRunner(Schedule plan, const Routes& routes, const Mesh& mesh, const RankDevices& devices,
             Transport& transport, ReplicaModels& models, DataParallel& data_parallel, const Loss& loss,
             const Handlers& handlers, FlightRecorder& recorder, Failure& failure);

  PlanRunner(const PlanRunner&) = delete;  // its ranks refer to its plan
  PlanRunner& operator=(const PlanRunner&) = delete;

  const Schedule& plan() const { return plan_; }

  /// `steps`: one for each local replica. Throws StepError; the runner can be used again.
  void run(std::vector<Step>& steps, Workers* workers);

  /// The same on the caller's thread and its current stream, one rank in turn after the other. REQUIRES: all
  /// ranks are of this process, on one device.
  void run_serially(Step& step);

  /// Of the last step; empty, and 0, for ranks of other processes. The timeline is that of replica 0, the
  /// peaks are over all.
  Timeline take_timeline();
  std::vector<int> peak_live() const;

  std::map<Stage, std::string> unsplit_stages() const;

 private:
  void begin(std::span<Step> steps);
  void end();
  /// What ranks compute on streams of their own comes after what the caller has asked for, and before what he
  /// asks for next.
  void fork_streams() const;
  void join_streams() const;
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
  std::vector<Turn> serial_;                              // the order of run_serially, once it was needed
  Clock::time_point start_;                               // of the last step
  std::unordered_map<c10::Device, DeviceClock> clocks_;   // where it was traced
};

}  // namespace pipewright
