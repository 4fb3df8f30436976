// What running a pipeline costs, in lines of JSON; compare_runtime.py prints them beside the reference.
//
//   runtime_bench tiny ROUNDS      steps over layers so small that only the pipeline itself takes time
//   runtime_bench actions ROUNDS   steps over stages that do nothing, by the action
//   runtime_bench gpt              for each line `SCHEDULE WIDTH STEPS` of the input, steps of a small GPT
//   runtime_bench idle             the memory of a process that has only loaded libtorch

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
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "gpt/gpt.h"
#include "pipewright/runtime/memory.h"
#include "pipewright/runtime/pipeline.h"
#include "pipewright/schedule/generate.h"

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

double seconds_of(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
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
      const double seconds = seconds_of(each.run);
      if (round >= 0) each.seconds.push_back(seconds);
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

// ---- a small GPT ----

constexpr Rank kGptRanks = 2;
constexpr Microbatch kGptMicrobatches = 16;
constexpr std::int64_t kGptRows = 2;

Pipeline gpt_pipeline(const std::string& name, const gpt::Config& config) {
  const Schedule schedule =
      make_schedule({.name = name, .ranks = kGptRanks, .microbatches = kGptMicrobatches});
  auto build = [&](Stage stage) { return gpt::make_stage(config, stage, schedule.stage_count()); };
  return {schedule, build, {.loss = gpt::next_character_loss, .threads_per_rank = 1}};
}

json train_gpt(Pipeline& pipeline, const gpt::Config& config, int steps) {
  const at::Tensor words =
      at::randint(config.vocab, {2, kGptRows * kGptMicrobatches, config.context}, at::kLong);
  std::vector<double> seconds;
  double loss = 0;
  for (int step = 0; step < steps; ++step) {
    pipeline.zero_grad();
    seconds.push_back(seconds_of([&] { loss = pipeline.step({words[0]}, {words[1]}).loss.item<double>(); }));
  }
  return {{"seconds", seconds}, {"loss", loss}, {"peak_MiB", peak_mebibytes()}};
}

void serve_gpt(std::istream& in) {
  keep_freed_memory();
  std::map<std::pair<std::string, std::int64_t>, Pipeline> pipelines;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name;
    gpt::Config config;
    int steps = 0;
    if (!(words >> name >> config.width >> steps)) throw ArgumentError("not SCHEDULE WIDTH STEPS: " + line);
    auto found = pipelines.find({name, config.width});
    if (found == pipelines.end()) {
      found = pipelines.emplace(std::pair(name, config.width), gpt_pipeline(name, config)).first;
    }
    std::cout << train_gpt(found->second, config, steps) << std::endl;
  }
}

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
    } else if (command == "gpt" && arguments.size() == 1) {
      pipewright::serve_gpt(std::cin);
    } else if (command == "idle" && arguments.size() == 1) {
      pipewright::idle();
    } else {
      std::cerr << "usage: runtime_bench tiny ROUNDS | actions ROUNDS | gpt | idle\n";
      return 2;
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
