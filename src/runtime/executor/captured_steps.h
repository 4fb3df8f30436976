#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device/cuda_graph.h"
#include "runtime/device/rank_devices.h"
#include "runtime/executor/handlers.h"
#include "runtime/executor/plan_runner.h"
#include "runtime/executor/step.h"

namespace pipewright {

/// Why the steps of a pipeline can never be recorded; empty where they can.
std::string what_forbids_capture(const RankDevices& devices, int replicas, bool in_world);

/// Training steps as CUDA graphs. The first steps with values of some shapes run as they would without, but
/// on one thread and one stream; the next is recorded, and from then on replayed with the values that steps
/// bring. Graphs are kept for a few shapes, those that were used last.
class CapturedSteps {
 public:
  /// All are kept by reference. `eager` and `recording` run the same plan, all of it on `device`; the latter
  /// has a Failure of its own, because a step that cannot be recorded has not failed.
  CapturedSteps(c10::Device device, StageModels& models, const Handlers& handlers, PlanRunner& eager,
                PlanRunner& recording);

  /// Everything that a graph depends on.
  using Key = std::vector<std::int64_t>;

  /// What follows the gradients of a step, as a part of its graph.
  struct Tail {
    /// What `launch` depends on, besides parameters and gradients, as things are now.
    std::function<Key()> key;
    /// On the host, in every step, when parameters have the gradients that the step gives or will give them.
    std::function<void()> prepare;
    /// Launches what is to be recorded, given the losses. What it returns keeps its place in the graph.
    std::function<at::Tensor(const std::vector<at::Tensor>& losses)> launch;
    /// What was launched in this step has returned, or written anew.
    at::Tensor result = {};
  };

  enum class Ran : std::uint8_t { NotAtAll, Eagerly, Replayed };
  /// Runs the step, and its tail, if there is one; neither, if they cannot be recorded. Throws StepError.
  /// REQUIRES: with a tail, no parameter has a gradient yet.
  Ran run(Step& step, Tail* tail);
  bool has_gradients() const;

  /// Before anything else of a step: gradients that are there by now stay, though the memory of those that
  /// came from a graph is about to be used again.
  void keep_gradients() const;

  /// Why the last step was not run.
  const std::string& refusal() const { return refusal_; }

 private:
  struct Recorded {
    explicit Recorded(c10::Stream stream) : graph(stream) {}

    CudaGraph graph;
    Step step;                          // what the graph reads
    std::vector<Values> outputs;        // and what it writes, by microbatch
    std::vector<at::Tensor> gradients;  // by parameter
    at::Tensor result;                  // of the tail
  };
  struct Entry {
    Key key;
    int seen = 0;
    std::string failure = {};  // of recording it
    std::unique_ptr<Recorded> recorded = {};
  };

  std::string what_speaks_against(const Step& step) const;
  /// Why nothing can be recorded now, but perhaps later; empty where it can.
  std::string what_is_outside() const;
  Key key_of(const Step& step) const;
  Entry& entry_of(Key key);
  void record(Entry& entry, const Step& like, const Tail* tail);
  void replay(Recorded& recorded, Step& step, Tail* tail) const;

  const c10::Device device_;
  const c10::Stream stream_;
  const Handlers& handlers_;
  PlanRunner& eager_;
  PlanRunner& recording_;
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;  // with those within
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> buffers_;
  std::list<Entry> entries_;  // the last used first
  std::string refusal_;
};

}  // namespace pipewright
