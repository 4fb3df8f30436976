#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pipewright/runtime/stage_model.h"
#include "pipewright/schedule/timeline.h"
#include "runtime/backward/backward.h"
#include "runtime/collective/data_parallel.h"
#include "runtime/device/device_clock.h"
#include "runtime/device/rank_devices.h"
#include "runtime/device/streams.h"
#include "runtime/executor/handlers.h"
#include "runtime/executor/held_memory.h"
#include "runtime/executor/program.h"
#include "runtime/executor/rank_streams.h"
#include "runtime/executor/step.h"
#include "runtime/executor/workers.h"
#include "runtime/flight/rank_recorder.h"
#include "runtime/stage/boundary_check.h"

namespace pipewright {

/// Runs one rank's part of a plan, step after step. Holds the activations, graphs
/// and gradients that are between two of its actions, each until its last use.
///
/// Used by one thread at a time; the parts of an OVERLAP_F_B run on two, and touch
/// different microbatches.
class RankExecutor {
 public:
  /// All are kept by reference and outlive the executor, but for the routes and devices. `models`: of this
  /// replica.
  RankExecutor(const Schedule& plan, const Routes& routes, Position position, const RankDevices& devices,
               Transport& transport, StageModels& models, DataParallel& data_parallel, const Loss& loss,
               const Handlers& handlers, RankRecorder& recorder, Failure& failure);

  /// Runs the whole program, on streams of this rank where it has them; what goes wrong is reported to the
  /// Failure, not thrown.
  void run(Step& step);

  /// The same for a thread that runs several ranks in turn, on its own current stream: the cells between
  /// `begin` and `end`, in their order.
  void begin(Step& step, bool alone);
  void run_cell(std::size_t at, std::size_t size);
  void end() { loss_gradient_.reset(); }

  /// Drops everything that a failed step has left behind.
  void clear();

  Position position() const { return position_; }
  c10::Device device() const { return device_; }
  /// On which it computes, where that is not its thread's.
  std::optional<c10::Stream> stream() const { return streams_.of(Lane::Compute); }

  /// Of the last step.
  int peak_live() const { return peak_live_; }
  /// `clock`: of this rank's device, null for the CPU.
  std::vector<TimedAction> take_trace(const DeviceClock* clock);

  /// Stages whose I ran the whole backward, with the reason.
  std::map<Stage, std::string> unsplit_stages() const;

 private:
  /// What one microbatch holds on one stage between actions.
  struct Held {
    explicit Held(const StageWays& ways)
        : inputs(ways.earlier.size()),
          output_grads(ways.later.size()),
          to_later(ways.later.size()),
          to_earlier(ways.earlier.size()) {}

    std::vector<Values> inputs;        // by way: handed over by a stage of this rank, until F
    std::vector<Values> output_grads;  // likewise, until the backward
    StageGraph graph;                  // F to B or I
    WeightWork weight;                 // I to W
    WeightGradient dw;                 // F to W, where the model computes its own
    std::vector<Values> to_later;      // by way: F to SEND_F
    std::vector<Values> to_earlier;    // by way: backward to SEND_B
    Lane lane = Lane::Compute;         // of its forward and its backward
  };
  struct LocalStage {
    Stage stage;
    const StageWays& ways;
    StageModel& model;
    StageReplicas* replicas;  // null without data parallelism
    std::size_t member;       // this one's place among the local replicas
    BoundaryCheck inputs;
    BoundaryCheck outputs;
    std::vector<Held> held;
    StageMemory memory;   // measured in traced steps
    std::string unsplit;  // why its I ran the whole backward, if it did
  };
  class Recorded;

  void run_overlapped(std::size_t at, std::size_t size);
  /// Puts each forward of a cell on the stream that its backwards are not on.
  void choose_lanes(std::size_t at, std::size_t size);
  void run_handler(const Handler& handler, std::size_t at, std::size_t size);
  void run_guarded(std::size_t at);
  /// Runs it and reports what it throws.
  template <typename Run>
  void guarded(std::size_t at, Run run);
  void run_action(std::size_t at);

  void forward(const Instruction& instruction, Recorded& recorded);
  void last_forward(LocalStage& local, Microbatch microbatch, Held& held, Values outputs);
  void backward(const Instruction& instruction, Recorded& recorded);
  void weight(const Instruction& instruction, Recorded& recorded);

  Values take_inputs(const Instruction& instruction, Recorded& recorded);
  Values take_output_grads(const Instruction& instruction, Recorded& recorded);
  /// What a way brings; `handed_over` where the peer is on this rank.
  Values take(const Instruction& instruction, const Way& way, Values& handed_over, Recorded& recorded);
  void give_outputs(LocalStage& local, std::size_t microbatch, const Values& outputs);
  void give_input_grads(LocalStage& local, std::size_t microbatch, const Values& grads);
  Values loss_gradient(Microbatch microbatch);
  /// Null where it is not of this rank.
  LocalStage* local_stage(Stage stage);
  Held& held(const Instruction& instruction) {
    return locals_[instruction.local_stage].held[instruction.action.microbatch];
  }

  /// Whether it is of the first microbatch of a traced training step, which stands for the others.
  bool measures_memory(Action action) const;
  void activation_held(int change);
  /// Before a stage computes.
  static void wait_for_parameters(const LocalStage& local, Recorded& recorded);

  const Schedule& plan_;
  const Position position_;
  const Rank rank_;
  const c10::Device device_;
  const RankStreams streams_;
  const Loss& loss_;
  const Handlers& handlers_;
  RankRecorder& recorder_;
  Failure& failure_;
  Program program_;
  static constexpr RankRecorder::Ticket kNotRunning = ~RankRecorder::Ticket{0};
  std::vector<RankRecorder::Ticket> running_;  // by the place in the program
  std::vector<LocalStage> locals_;
  std::unique_ptr<Workers> side_;  // for the second part of an OVERLAP_F_B

  Step* step_ = nullptr;
  bool alone_ = true;  // no other rank runs on its thread
  std::vector<TimedAction> trace_;
  struct Marks {
    Mark start;
    Mark end;
  };
  std::vector<Marks> marks_;  // of the trace, where the device is not the CPU
  std::atomic<int> live_ = 0;
  std::atomic<int> peak_live_ = 0;
  at::Tensor loss_gradient_;
};

}  // namespace pipewright
