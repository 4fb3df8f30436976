// What running a pipeline costs, in lines of JSON; compare_runtime.py prints them beside the reference.
//
//   runtime_bench tiny ROUNDS      steps over layers so small that only the pipeline itself takes time
//   runtime_bench actions ROUNDS   steps over stages that do nothing, by the action
//   runtime_bench gpt              for each line `SCHEDULE WIDTH STEPS` of the input, steps of a small GPT
//   runtime_bench handover         for each line `BYTES STEPS` of the input, steps that only hand a message
//   on runtime_bench recording ROUNDS what recording an action takes, and steps over tiny layers, which do it
//   runtime_bench idle             the memory of a process that has only loaded libtorch
//
// The two that read requests join the world that their environment describes, if any: then each of its
// processes reads the same requests, and answers for itself.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpt/gpt.h"
#include "pipewright/runtime/memory.h"
#include "pipewright/runtime/pipeline.h"
#include "pipewright/runtime/world.h"
#include "pipewright/schedule/generate.h"
#include "requests.h"
#include "runtime/flight/rank_recorder.h"

namespace pipewright {
namespace {

using nlohmann::json;

/// The most memory this process has had resident.
double peak_mebibytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) / 1024;
  }
  return 0;
}

/// By a clock that all processes of a machine share.
double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Start and end, in seconds.
using Span = std::pair<double, double>;

Span span_of(const std::function<void()>& run) {
  const double start = seconds_now();
  run();
  return {start, seconds_now()};
}

/// One of several that are measured in turns.
struct Contender {
  json name;
  std::function<void()> before;  // not measured
  std::function<void()> run;
  std::vector<double> seconds = {};
};

/// Prints the seconds of every round of each, after `warm_up` rounds that do not count.
void race(std::vector<Contender> contenders, int rounds, int warm_up) {
  for (int round = -warm_up; round < rounds; ++round) {
    for (Contender& each : contenders) {
      if (each.before) each.before();
      const auto [start, end] = span_of(each.run);
      if (round >= 0) each.seconds.push_back(end - start);
    }
  }
  for (Contender& each : contenders) {
    each.name["seconds"] = each.seconds;
    std::cout << each.name << std::endl;
  }
}

// ---- tiny layers ----

constexpr std::int64_t kTinyWidth = 8;
constexpr std::int64_t kTinyRows = 4;
constexpr int kTinyStages = 4;
constexpr Microbatch kTinyMicrobatches = 16;

struct TinyLayer : torch::nn::Module {
  TinyLayer() : linear(register_module("linear", torch::nn::Linear(kTinyWidth, kTinyWidth))) {}
  at::Tensor forward(const at::Tensor& x) { return at::relu(linear(x)); }
  torch::nn::Linear linear;
};

/// What one would write without pipelines.
class HandWritten {
 public:
  void zero_grad() {
    for (TinyLayer& layer : layers_) layer.zero_grad();
  }

  std::vector<at::Tensor> step(const at::Tensor& inputs, const at::Tensor& targets) {
    const std::vector<at::Tensor> xs = inputs.chunk(kTinyMicrobatches);
    const std::vector<at::Tensor> ys = targets.chunk(kTinyMicrobatches);
    std::vector<at::Tensor> losses;
    for (std::size_t microbatch = 0; microbatch < xs.size(); ++microbatch) {
      at::Tensor x = xs[microbatch];
      for (TinyLayer& layer : layers_) x = layer.forward(x);
      const at::Tensor loss = at::mse_loss(x, ys[microbatch]) / kTinyMicrobatches;
      loss.backward();
      losses.push_back(loss.detach());
    }
    return losses;
  }

 private:
  std::vector<TinyLayer> layers_ = std::vector<TinyLayer>(kTinyStages);
};

Pipeline tiny_pipeline(const std::string& name) {
  const Schedule schedule = make_schedule(
      {.name = name, .ranks = 1, .microbatches = kTinyMicrobatches, .stages_per_rank = kTinyStages});
  auto loss = [](const Values& outputs, const Values& targets) {
    return at::mse_loss(outputs[0], targets[0]);
  };
  return {schedule, [](Stage) { return StageModel(std::make_shared<TinyLayer>()); }, {.loss = loss}};
}

void tiny(int rounds) {
  at::set_num_threads(1);
  const at::Tensor inputs = at::randn({kTinyRows * kTinyMicrobatches, kTinyWidth});
  const at::Tensor targets = at::randn_like(inputs);
  HandWritten loop;
  std::vector<Contender> contenders = {{.name = {{"runs", "hand-written loop"}},
                                        .before = [&] { loop.zero_grad(); },
                                        .run = [&] { loop.step(inputs, targets); }}};
  std::map<std::string, Pipeline> pipelines;
  for (const char* name : {"Interleaved1F1B", "InterleavedZeroBubble"}) {
    Pipeline& pipeline = pipelines.emplace(name, tiny_pipeline(name)).first->second;
    contenders.push_back({.name = {{"runs", name}, {"actions", pipeline.plan().action_count()}},
                          .before = [&] { pipeline.zero_grad(); },
                          .run = [&] { pipeline.step({inputs}, {targets}); }});
  }
  race(std::move(contenders), rounds, /*warm_up=*/rounds / 10 + 1);
}

// ---- the flight record ----

constexpr int kRecorded = 10'000;

void recording(int rounds) {
  at::set_num_threads(1);
  RankRecorder recorder({.replica = 0, .rank = 0});
  // As an executor does it for an action that needs nothing from elsewhere.
  const auto record = [&] {
    for (int at = 0; at < kRecorded; ++at) {
      const RankRecorder::Ticket ticket =
          recorder.begin(make_action(at % kTinyStages, Kind::F, at % kTinyMicrobatches), 1, Clock::now());
      recorder.end(ticket, Clock::now());
    }
  };
  const at::Tensor inputs = at::randn({kTinyRows * kTinyMicrobatches, kTinyWidth});
  const at::Tensor targets = at::randn_like(inputs);
  Pipeline pipeline = tiny_pipeline("Interleaved1F1B");
  race({{.name = {{"runs", "recording"}, {"actions", kRecorded}}, .before = {}, .run = record},
        {.name = {{"runs", "step"}, {"actions", pipeline.plan().action_count()}},
         .before = [&] { pipeline.zero_grad(); },
         .run = [&] { pipeline.step({inputs}, {targets}); }}},
       rounds, /*warm_up=*/rounds / 10 + 1);
}

// ---- actions that do nothing ----

constexpr int kStubStages = 4;
constexpr Microbatch kStubMicrobatches = 256;

/// Stages hand one number on, and its gradient back.
void actions(int rounds) {
  at::set_num_threads(1);
  Batch batch;
  batch.microbatches.resize(kStubMicrobatches);
  for (MicrobatchValues& each : batch.microbatches) each.inputs = {at::zeros({}).requires_grad_()};
  for (const Rank ranks : {1, 2}) {
    for (const char* name : {"Interleaved1F1B", "InterleavedZeroBubble"}) {
      const Schedule schedule = make_schedule({.name = name,
                                               .ranks = ranks,
                                               .microbatches = kStubMicrobatches,
                                               .stages_per_rank = kStubStages / ranks});
      Pipeline pipeline(schedule, [](Stage) { return StageModel(); }, {.threads_per_rank = 1});
      std::vector<Contender> contenders;
      for (const bool trace : {false, true}) {
        contenders.push_back({.name = {{"runs", name},
                                       {"ranks", ranks},
                                       {"actions", pipeline.plan().action_count()},
                                       {"trace", trace}},
                              .before = {},
                              .run = [&, trace] { pipeline.step(batch, {.trace = trace}); }});
      }
      race(std::move(contenders), rounds, /*warm_up=*/rounds / 10 + 1);
    }
  }
}

// ---- requests ----

/// Null where no launcher has described one.
std::shared_ptr<World> join_world() {
  const std::optional<WorldOptions> told = world_from_environment();
  return told ? std::make_shared<World>(*told) : nullptr;
}

/// Steps that all processes of the world, if there is one, start together.
std::vector<Span> timed_steps(World* world, int steps, const std::function<void()>& before,
                              const std::function<void()>& run) {
  std::vector<Span> spans;
  for (int step = 0; step < steps; ++step) {
    before();
    if (world) world->all_gather({});
    spans.push_back(span_of(run));
  }
  return spans;
}

// ---- a small GPT ----

constexpr Rank kGptRanks = 2;
constexpr Microbatch kGptMicrobatches = 16;
constexpr std::int64_t kGptRows = 2;

Pipeline gpt_pipeline(const std::string& name, const gpt::Config& config,
                      const std::shared_ptr<World>& world) {
  const Schedule schedule =
      make_schedule({.name = name, .ranks = kGptRanks, .microbatches = kGptMicrobatches});
  auto build = [&](Stage stage) { return gpt::make_stage(config, stage, schedule.stage_count()); };
  return {schedule, build, {.loss = gpt::next_character_loss, .threads_per_rank = 1, .world = world}};
}

json train_gpt(Pipeline& pipeline, const gpt::Config& config, World* world, int steps) {
  const at::Tensor words =
      at::randint(config.vocab, {2, kGptRows * kGptMicrobatches, config.context}, at::kLong);
  double loss = 0;
  const std::vector<Span> spans = timed_steps(
      world, steps, [&] { pipeline.zero_grad(); },
      [&] { loss = pipeline.step({words[0]}, {words[1]}).loss.item<double>(); });
  return {{"steps", spans}, {"loss", loss}, {"peak_MiB", peak_mebibytes()}};
}

void serve_gpt(std::istream& in) {
  keep_freed_memory();
  const std::shared_ptr<World> world = join_world();
  std::map<std::pair<std::string, std::int64_t>, Pipeline> pipelines;
  serve(in, [&](std::istream& request) -> json {
    std::string name;
    gpt::Config config;
    int steps = 0;
    if (!(request >> name >> config.width >> steps)) return {};
    auto found = pipelines.find({name, config.width});
    if (found == pipelines.end()) {
      found = pipelines.emplace(std::pair(name, config.width), gpt_pipeline(name, config, world)).first;
    }
    return train_gpt(found->second, config, world.get(), steps);
  });
}

// ---- messages ----

constexpr Stage kHandovers = 15;

/// One microbatch goes from rank to rank and back, through stages that hand it on as it
/// is. Nobody has anything else to do: a step is its messages, one after the other.
Pipeline handover_pipeline(const std::shared_ptr<World>& world) {
  std::vector<Rank> placement;
  for (Stage stage = 0; stage <= kHandovers; ++stage) placement.push_back(stage % 2);
  const Schedule schedule =
      make_schedule({.name = "ForwardOnly", .ranks = 2, .microbatches = 1, .placement = placement});
  auto build = [](Stage stage) {
    return stage < kHandovers ? StageModel() : StageModel([](const at::Tensor& values) { return values[0]; });
  };
  return {schedule, build, {.threads_per_rank = 1, .world = world}};
}

void serve_handover(std::istream& in) {
  keep_freed_memory();
  const std::shared_ptr<World> world = join_world();
  Pipeline pipeline = handover_pipeline(world);
  serve(in, [&](std::istream& request) -> json {
    std::int64_t bytes = 0;
    int steps = 0;
    if (!(request >> bytes >> steps)) return {};
    const Batch batch = {.inputs = {at::ones({bytes / std::int64_t{sizeof(float)}})}, .targets = {}};
    const EvalOptions options = {.outputs = false, .everywhere = false};
    return {{"steps", timed_steps(world.get(), steps, [] {}, [&] { pipeline.eval(batch, options); })}};
  });
}

// ---- memory ----

/// Has used tensors and autograd, and nothing else.
void idle() {
  at::set_num_threads(1);
  const at::Tensor weight = at::ones({8, 8}).requires_grad_();
  at::mm(weight, weight).sum().backward();
  std::cout << json{{"peak_MiB", peak_mebibytes()}} << std::endl;
}

}  // namespace
}  // namespace pipewright

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const std::string command = arguments.empty() ? "" : arguments[0];
  try {
    if (command == "tiny" && arguments.size() == 2) {
      pipewright::tiny(std::stoi(arguments[1]));
    } else if (command == "actions" && arguments.size() == 2) {
      pipewright::actions(std::stoi(arguments[1]));
    } else if (command == "recording" && arguments.size() == 2) {
      pipewright::recording(std::stoi(arguments[1]));
    } else if (command == "gpt" && arguments.size() == 1) {
      pipewright::serve_gpt(std::cin);
    } else if (command == "handover" && arguments.size() == 1) {
      pipewright::serve_handover(std::cin);
    } else if (command == "idle" && arguments.size() == 1) {
      pipewright::idle();
    } else {
      std::cerr
          << "usage: runtime_bench tiny ROUNDS | actions ROUNDS | recording ROUNDS | gpt | handover | idle\n";
      return 2;
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
