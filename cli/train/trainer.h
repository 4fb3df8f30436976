#pragma once

#include <c10/core/DeviceGuard.h>

#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/runtime/checkpoint.h"
#include "pipewright/runtime/pipeline.h"
#include "train/peak_memory.h"
#include "train/train_options.h"
#include "train/training_update.h"
#include "train/workload.h"

namespace pipewright::cli {

/// What is told about a step.
struct StepRecord {
  int step = 0;  ///< Counted from 1.
  double loss = 0;
  double grad_norm = 0;  ///< Before clipping.
  double seconds = 0;    ///< From the data to the optimizer's end.
  /// Why the optimizer left this step out; empty where it did not.
  std::string skipped_for = {};
  /// Measured: 1 - compute time of the busiest rank / makespan. Not given where actions have no times.
  std::optional<double> bubble = {};
  int peak_live = 0;            ///< Microbatches whose activations a stage of this process held at once.
  PeakMemory peak_memory = {};  ///< Since the trainer was made.
};

/// A model, its data and an optimizer, trained by a schedule.
class Trainer {
 public:
  /// `world`: the processes that train together; null for this one alone.
  Trainer(const TrainOptions& options, const std::shared_ptr<World>& world);
  ~Trainer();

  /// The next step. Throws Error for numbers that are not finite, where that is to stop it.
  StepRecord step();

  /// Why steps do not become CUDA graphs, where they should.
  std::string not_captured_for() const { return pipeline_->not_captured_for(); }
  PeakMemory peak_memory() const { return PeakMemory::since_reset(devices_); }

  /// What this process did last, to where flight records go; from any thread.
  std::filesystem::path write_flight_record() const { return pipeline_->write_flight_record("SIGUSR1"); }
  /// Left out for numbers that are not finite, in this process.
  std::int64_t skipped() const { return pipeline_->skipped_steps(); }
  /// Steps that were made, those before the checkpoint that it has gone on from included.
  int done() const { return done_; }
  /// Goes on from the newest checkpoint; false where there is none.
  bool resume();
  void save() const;
  /// The whole model's parameters and buffers, to a file; all processes call it.
  void write_model(const std::filesystem::path& file) const;

  const Schedule& plan() const { return pipeline_->plan(); }
  const Workload& workload() const { return *workload_; }
  /// Of the whole model.
  std::int64_t parameter_count() const { return parameter_count_; }
  bool on_cuda() const { return devices_.front().is_cuda(); }
  /// Whether several ranks compute on one CUDA device, as far as this process knows.
  bool shares_device() const;
  /// Timelines of the last steps; the very first, which sets everything up, only if it is alone. None with
  /// CUDA graphs.
  std::vector<Timeline> recent() const { return {recent_.begin(), recent_.end()}; }

 private:
  StepRecord make_step();
  /// Where the first and the last stage take it.
  Batch next_batch() const;

  TrainOptions options_;
  int threads_before_;
  std::shared_ptr<World> world_;      // null where this process is alone
  std::vector<at::Device> devices_;   // by rank
  c10::OptionalDeviceGuard current_;  // where values of other processes arrive
  std::unique_ptr<Workload> workload_;
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<TrainingUpdate> update_;
  std::unique_ptr<Checkpoints> checkpoints_;  // null where none are saved
  std::int64_t parameter_count_ = 0;
  int done_ = 0;
  int before_ = 0;  // of them, made before this program was started
  std::deque<Timeline> recent_;
};

}  // namespace pipewright::cli
