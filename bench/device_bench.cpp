// Training steps of a GPT in bfloat16 on one CUDA device, in lines of JSON; compare_device.py prints them
// beside the reference.
//
//   device_bench   for each line `KIND MODEL STEPS` of the input, steps of a model: small, medium or large
//
// Kinds:
//   loop                                the stages one after the other, microbatch by microbatch: no pipeline
//   graph                               the same, a whole step captured as one CUDA graph
//   eager, captured                     a pipeline, Interleaved1F1B: as it is, and as a CUDA graph
//   zero_bubble, captured_zero_bubble   likewise, InterleavedZeroBubble
//
// A step's time is the host's, from an idle device to an idle device; gradients are undefined before it, and
// resetting them is not measured. What was built stays until another kind or model is asked for. What
// libraries have once allocated, such as a workspace for each stream, stays longer: memory is that of one
// kind alone only where a process is asked for nothing else.

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/cuda.h>

#include <chrono>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "gpt/gpt.h"
#include "pipewright/runtime/memory.h"
#include "pipewright/runtime/pipeline.h"
#include "pipewright/schedule/generate.h"
#include "requests.h"
#include "runtime/device/cuda_graph.h"

namespace pipewright {
namespace {

using nlohmann::json;

const at::Device kDevice(at::kCUDA, 0);
constexpr Stage kStages = 4;
constexpr int kWarmUp = 3;

void free_unused_memory() { c10::getDeviceAllocator(kDevice.type())->emptyCache(); }

// ---- models ----

struct Sizes {
  gpt::Config config;
  Microbatch microbatches;
  std::int64_t rows;  // of a microbatch
};

Sizes sizes_of(const std::string& model) {
  if (model == "small") {
    return {.config = {.layers = 8, .width = 256, .heads = 4, .context = 128, .vocab = 1024},
            .microbatches = 16,
            .rows = 2};
  }
  if (model == "medium") {
    return {.config = {.layers = 16, .width = 1024, .heads = 16, .context = 512, .vocab = 8192},
            .microbatches = 16,
            .rows = 2};
  }
  if (model == "large") {
    return {.config = {.layers = 16, .width = 2048, .heads = 16, .context = 1024, .vocab = 32000},
            .microbatches = 8,
            .rows = 2};
  }
  throw ArgumentError("there is no model '" + model + "': small, medium, large");
}

StageModel make_stage(const gpt::Config& config, Stage stage) {
  StageModel model = gpt::make_stage(config, stage, kStages);
  model.module->to(kDevice, at::kBFloat16);
  if (stage > 0) model.inputs->at(0).dtype = at::kBFloat16;
  model.outputs->at(0).dtype = at::kBFloat16;
  return model;
}

/// Stages with their parameters, and a batch.
class Model {
 public:
  explicit Model(const Sizes& sizes) : microbatches_(sizes.microbatches) {
    for (Stage stage = 0; stage < kStages; ++stage) stages_.push_back(make_stage(sizes.config, stage));
    const at::Tensor words =
        at::randint(sizes.config.vocab, {2, sizes.rows * microbatches_, sizes.config.context},
                    at::TensorOptions(at::kLong).device(kDevice));
    inputs_ = words[0];
    targets_ = words[1];
  }

  const StageModel& stage(Stage stage) const { return stages_.at(static_cast<std::size_t>(stage)); }
  Microbatch microbatches() const { return microbatches_; }
  const at::Tensor& inputs() const { return inputs_; }
  const at::Tensor& targets() const { return targets_; }

  void zero_grad() const {
    for (const StageModel& stage : stages_) stage.module->zero_grad();
  }

  /// A step as one would write it without pipelines; the losses.
  std::vector<at::Tensor> step() const {
    const std::vector<at::Tensor> xs = inputs_.chunk(microbatches_);
    const std::vector<at::Tensor> ys = targets_.chunk(microbatches_);
    std::vector<at::Tensor> losses;
    for (std::size_t microbatch = 0; microbatch < xs.size(); ++microbatch) {
      const at::Tensor loss =
          gpt::next_character_loss(forward({xs[microbatch]}), {ys[microbatch]}) / microbatches_;
      loss.backward();
      losses.push_back(loss.detach());
    }
    return losses;
  }

 private:
  Values forward(Values values) const {
    for (const StageModel& stage : stages_) values = stage.forward(values);
    return values;
  }

  Microbatch microbatches_;
  std::vector<StageModel> stages_;
  at::Tensor inputs_;
  at::Tensor targets_;
};

// ---- kinds ----

/// One way to train a model, warmed up.
struct Training {
  std::function<void()> zero_grad;
  std::function<void()> step;
};

Training loop(const Model& model) {
  for (int step = 0; step < kWarmUp; ++step) {
    model.zero_grad();
    model.step();
  }
  return {.zero_grad = [&model] { model.zero_grad(); }, .step = [&model] { model.step(); }};
}

Training graph_of_loop(const Model& model) {
  const c10::Stream stream = c10::impl::VirtualGuardImpl(kDevice.type()).getStreamFromGlobalPool(kDevice);
  torch::cuda::synchronize();  // what was made on the default stream is there
  {
    const c10::StreamGuard guard(stream);
    loop(model);  // warms up
  }
  model.zero_grad();
  torch::cuda::synchronize();
  const auto graph = std::make_shared<CudaGraph>(stream);
  std::vector<at::Tensor> losses;
  graph->capture([&] { losses = model.step(); });
  // A replay begins with new gradients by itself: the first microbatch's are not added to what was there.
  return {.zero_grad = [] {}, .step = [graph, losses] { graph->replay(); }};
}

Training pipeline(const Model& model, const std::string& name, bool captured) {
  const Schedule schedule = make_schedule(
      {.name = name, .ranks = 1, .microbatches = model.microbatches(), .stages_per_rank = kStages});
  const auto built = std::make_shared<Pipeline>(
      schedule, [&](Stage stage) { return model.stage(stage); },
      PipelineOptions{.loss = gpt::next_character_loss, .cuda_graph = captured});
  for (int step = 0; step < kWarmUp; ++step) {
    built->zero_grad();
    built->step({model.inputs()}, {model.targets()});
  }
  auto step = [&model, built, captured] {
    const StepResult result = built->step({model.inputs()}, {model.targets()});
    if (captured && !result.replayed) throw Error("steps are not captured: " + built->not_captured_for());
  };
  return {.zero_grad = [built] { built->zero_grad(); }, .step = step};
}

Training make_training(const std::string& kind, const Model& model) {
  if (kind == "loop") return loop(model);
  if (kind == "graph") return graph_of_loop(model);
  if (kind == "eager") return pipeline(model, "Interleaved1F1B", false);
  if (kind == "captured") return pipeline(model, "Interleaved1F1B", true);
  if (kind == "zero_bubble") return pipeline(model, "InterleavedZeroBubble", false);
  if (kind == "captured_zero_bubble") return pipeline(model, "InterleavedZeroBubble", true);
  throw ArgumentError("there is no kind '" + kind + "'");
}

// ---- measuring ----

double milliseconds_of_step(const Training& training) {
  training.zero_grad();
  torch::cuda::synchronize();
  const auto start = std::chrono::steady_clock::now();
  training.step();
  torch::cuda::synchronize();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

json measure(const Training& training, int steps) {
  milliseconds_of_step(training);  // takes the memory again that the others find there
  reset_peak_memory(kDevice);
  std::vector<double> times;
  for (int step = 0; step < steps; ++step) times.push_back(milliseconds_of_step(training));
  const DeviceMemory memory = device_memory(kDevice);
  constexpr double kMebibyte = 1 << 20;
  return {{"ms", times},
          {"allocated_MiB", static_cast<double>(memory.peak_allocated) / kMebibyte},
          {"reserved_MiB", static_cast<double>(memory.peak_reserved) / kMebibyte}};
}

void answer_requests() {
  std::pair<std::string, std::string> built;
  std::unique_ptr<Model> model;
  Training training;
  serve(std::cin, [&](std::istream& request) -> json {
    std::string kind;
    std::string name;
    int steps = 0;
    if (!(request >> kind >> name >> steps)) return {};
    if (built != std::pair(kind, name)) {
      training = {};
      model.reset();
      free_unused_memory();
      model = std::make_unique<Model>(sizes_of(name));
      training = make_training(kind, *model);
      free_unused_memory();  // of the warm-up, which a captured step does not need any more
      built = {kind, name};
    }
    json reply = measure(training, steps);
    free_unused_memory();  // for others on the device
    return reply;
  });
}

}  // namespace
}  // namespace pipewright

int main(int argc, char** /*argv*/) {
  if (argc != 1) {
    std::cerr << "usage: device_bench, with lines KIND MODEL STEPS as its input\n";
    return 2;
  }
  if (!torch::cuda::is_available()) {
    std::cerr << "device_bench: there is no CUDA device\n";
    return 2;
  }
  try {
    pipewright::answer_requests();
  } catch (const std::exception& error) {
    std::cerr << "device_bench: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
