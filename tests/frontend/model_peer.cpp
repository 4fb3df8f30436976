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

#include "frontend/cuts.h"
#include "frontend/weighted_sum.h"
#include "pipewright/frontend/devices.h"
#include "pipewright/frontend/exported_model.h"
#include "pipewright/frontend/graph_module.h"
#include "pipewright/frontend/graph_stages.h"
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

Result run_whole(const ExportedModel& model, const Values& inputs) {
  GraphModule module(on_device(model.graph(), test_device()),
                     on_device(model.load(model.graph()), test_device()));
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
  PartitionedGraph parts = partition(graph, cuts);
  check_outputs_are_taken(parts);
  for (Graph& part : parts.stages) part = on_device(std::move(part), test_device());
  const auto load = [&](const Graph& of) { return on_device(model.load(of), test_device()); };
  const auto loss = [](const Values& outputs, const Values&) { return weighted_sum(outputs); };
  PipelineOptions options{
      .loss = loss, .routes = parts.routes, .tied = parts.tied, .timeout = std::chrono::seconds(30)};
  options.threads_per_rank = 1;
  const auto ranks = static_cast<Rank>(parts.stages.size());
  Pipeline pipeline(make_schedule({.name = "1F1B", .ranks = ranks, .microbatches = 1}),
                    graph_stages(parts, load), options);
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
