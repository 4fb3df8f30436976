// Runs exported models: for each line `CUTS FOLDER` of the input one. In the folder are model.pt2 and
// inputs.pt, a list of tensors; outputs.pt gets a list of the outputs, gradients.pt and buffers.pt
// dictionaries by name. The gradients are those of the sum of all outputs, each with weights that both sides
// know.
//
// CUTS: 0, and it is run as it is; or where to cut (cuts.h), and it is run as a pipeline.

#include <ATen/Parallel.h>
#include <torch/csrc/api/include/torch/serialize.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <stdexcept>

#include "cuts.h"
#include "pipewright/frontend/devices.h"
#include "pipewright/frontend/exported_model.h"
#include "pipewright/frontend/graph_module.h"
#include "pipewright/frontend/partition.h"
#include "pipewright/frontend/split.h"
#include "pipewright/runtime/pipeline.h"
#include "pipewright/schedule/generate.h"

namespace pipewright {
namespace {

c10::IValue read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return torch::pickle_load({std::istreambuf_iterator<char>(file), {}});
}

void write(const std::string& path, const c10::IValue& value) {
  const std::vector<char> bytes = torch::pickle_save(value);
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// Without a gradient where no output has one.
at::Tensor weighted_sum(const Values& outputs) {
  at::Tensor sum = torch::zeros({});
  for (const at::Tensor& output : outputs) {
    if (!output.requires_grad()) continue;
    const at::Tensor weights =
        torch::linspace(0.5, 1.5, output.numel(), output.options().dtype(at::kFloat).requires_grad(false));
    sum = sum + (output.to(at::kFloat).reshape({-1}) * weights).sum();
  }
  return sum;
}

struct Result {
  c10::List<at::Tensor> outputs;
  c10::Dict<std::string, at::Tensor> gradients;
  c10::Dict<std::string, at::Tensor> buffers;

  void add(const torch::nn::Module& module) const {
    for (const auto& item : module.named_parameters()) {
      if (item.value().grad().defined()) gradients.insert(item.key(), item.value().grad().cpu());
    }
    for (const auto& item : module.named_buffers())
      buffers.insert(item.key(), item.value().detach().cpu().clone());
  }
};

/// PIPEWRIGHT_TEST_DEVICE: where the models run, wherever they were exported.
at::Device test_device() {
  const char* const told = std::getenv("PIPEWRIGHT_TEST_DEVICE");
  return told ? at::Device(told) : at::Device(at::kCPU);
}

std::shared_ptr<GraphModule> make_module(const ExportedModel& model, const Graph& graph) {
  const at::Device device = test_device();
  return std::make_shared<GraphModule>(on_device(graph, device), on_device(model.load(graph), device));
}

Result run_whole(const ExportedModel& model, const Values& inputs) {
  const std::shared_ptr<GraphModule> whole = make_module(model, model.graph());
  GraphModule& module = *whole;
  const Values outputs = module.forward(inputs);
  const at::Tensor sum = weighted_sum(outputs);
  if (sum.requires_grad()) sum.backward();
  Result result;
  for (const at::Tensor& output : outputs) result.outputs.push_back(output.detach().cpu());
  result.add(module);
  return result;
}

/// Whatever a stage gives is taken by a later one.
void check_outputs_are_taken(const PartitionedGraph& parts) {
  for (std::size_t stage = 0; stage + 1 < parts.stages.size(); ++stage) {
    const Graph& part = parts.stages[stage];
    for (std::size_t output = 0; output < part.outputs.size(); ++output) {
      const Source source{.stage = static_cast<Stage>(stage), .output = output};
      if (std::ranges::none_of(parts.routes, [&](const std::vector<Source>& inputs) {
            return std::ranges::count(inputs, source) > 0;
          })) {
        throw std::runtime_error("nobody takes output " + std::to_string(output) + " of stage " +
                                 std::to_string(stage));
      }
    }
  }
}

Result run_stages(const ExportedModel& model, const Values& inputs, const std::vector<std::size_t>& cuts) {
  const Graph& graph = model.graph();
  const PartitionedGraph parts = partition(graph, cuts);
  check_outputs_are_taken(parts);
  const auto build = [&](Stage stage) {
    const Graph& part = parts.stages[static_cast<std::size_t>(stage)];
    StageModel built(make_module(model, part));
    built.global_name = [](const std::string& name) { return name; };
    return built;
  };
  const auto loss = [](const Values& outputs, const Values&) { return weighted_sum(outputs); };
  PipelineOptions options{
      .loss = loss, .routes = parts.routes, .tied = parts.tied, .timeout = std::chrono::seconds(30)};
  options.threads_per_rank = 1;
  const auto ranks = static_cast<Rank>(parts.stages.size());
  Pipeline pipeline(make_schedule({.name = "1F1B", .ranks = ranks, .microbatches = 1}), build, options);
  Batch batch;
  batch.microbatches = {{inputs, {}, {}}};
  const StepResult step = pipeline.step(batch, {.outputs = true});
  Result result;
  for (const at::Tensor& output : step.outputs) result.outputs.push_back(output.cpu());
  for (Stage stage = 0; stage < ranks; ++stage) result.add(*pipeline.stage(stage).module);
  return result;
}

void run(const std::string& cuts, const std::string& folder) {
  torch::manual_seed(1);
  const ExportedModel model(folder + "/model.pt2");
  Values inputs;
  const c10::IValue brought = read(folder + "/inputs.pt");
  for (const c10::IValue& input : brought.toListRef()) inputs.push_back(input.toTensor().to(test_device()));
  const Result result =
      cuts == "0" ? run_whole(model, inputs) : run_stages(model, inputs, cuts_of(model.graph(), cuts));
  write(folder + "/outputs.pt", result.outputs);
  write(folder + "/gradients.pt", result.gradients);
  write(folder + "/buffers.pt", result.buffers);
}

}  // namespace
}  // namespace pipewright

int main() {
  at::set_num_threads(1);
  std::string cuts;
  for (std::string folder; std::cin >> cuts && std::getline(std::cin >> std::ws, folder);) {
    try {
      pipewright::run(cuts, folder);
      std::cout << "done" << std::endl;
    } catch (const c10::Error& error) {
      std::cout << "error " << error.what_without_backtrace() << std::endl;
    } catch (const std::exception& error) {
      std::cout << "error " << error.what() << std::endl;
    }
  }
}
