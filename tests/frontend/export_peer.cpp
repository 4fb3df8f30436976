// Reads and writes files that Python writes and reads. A line of the input is a command:
//   copy FROM TO        reads a file of tensors and writes another
//   export CUTS FOLDER  cuts model.pt2 (cuts.h) and writes stage0.pt2, stage1.pt2...; with the parameters and
//                       buffers of state.pt, by the model's own names, if there is one; and routes
//   transmit CUTS FOLDER  the same, where parameters of several stages are sent
//   train CUTS FOLDER   a step of SGD on the weighted sum of all outputs for inputs.pt, as a pipeline; then
//                       state.pt and state.safetensors, and the whole model again, trained.pt2

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <fstream>
#include <iostream>

#include "cuts.h"
#include "pipewright/frontend/graph_module.h"
#include "pipewright/frontend/write_model.h"
#include "pipewright/runtime/pipeline.h"
#include "pipewright/schedule/generate.h"

namespace pipewright {
namespace {

void export_stages(const std::string& cuts, const std::string& folder, SharedParameters shared) {
  const ExportedModel model(folder + "/model.pt2");
  NamedTensors trained;
  if (std::filesystem::exists(folder + "/state.pt")) trained = read_tensors(folder + "/state.pt");
  const PartitionedGraph parts = partition(model.graph(), cuts_of(model.graph(), cuts), shared);
  for (std::size_t stage = 0; stage < parts.stages.size(); ++stage) {
    NamedTensors state = model.load(parts.stages[stage]);
    for (auto& [name, tensor] : state) {
      if (const auto found = trained.find(name.substr(0, name.find(kCopy))); found != trained.end())
        tensor = found->second;
    }
    write_model(folder + "/stage" + std::to_string(stage) + ".pt2", model, parts.stages[stage], state);
  }
  // For each stage, where its inputs come from: stage and output, a line a stage.
  std::ofstream routes(folder + "/routes");
  for (const std::vector<Source>& inputs : parts.routes) {
    for (const Source& source : inputs) routes << source.stage << ' ' << source.output << ' ';
    routes << '\n';
  }
}

at::Tensor weighted_sum(const Values& outputs) {
  at::Tensor sum = torch::zeros({});
  for (const at::Tensor& output : outputs) {
    if (!output.requires_grad()) continue;
    const at::Tensor weights = torch::linspace(0.5, 1.5, output.numel(), at::kFloat);
    sum = sum + (output.to(at::kFloat).reshape({-1}) * weights).sum();
  }
  return sum;
}

void train(const std::string& cuts, const std::string& folder) {
  torch::manual_seed(1);
  const ExportedModel model(folder + "/model.pt2");
  const PartitionedGraph parts = partition(model.graph(), cuts_of(model.graph(), cuts));
  const auto build = [&](Stage stage) {
    const Graph& part = parts.stages[static_cast<std::size_t>(stage)];
    StageModel built(std::make_shared<GraphModule>(part, model.load(part)));
    built.global_name = [](const std::string& name) { return name; };
    return built;
  };
  PipelineOptions options{.loss = [](const Values& outputs, const Values&) { return weighted_sum(outputs); },
                          .routes = parts.routes,
                          .tied = parts.tied,
                          .timeout = std::chrono::seconds(30)};
  options.threads_per_rank = 1;
  const auto ranks = static_cast<Rank>(parts.stages.size());
  Pipeline pipeline(make_schedule({.name = "1F1B", .ranks = ranks, .microbatches = 1}), build, options);
  Values inputs;
  for (const auto& [name, tensor] : read_tensors(folder + "/inputs.pt")) inputs.push_back(tensor);
  Batch batch;
  batch.microbatches = {{inputs, {}, {}}};
  pipeline.step(batch, {});
  {
    const at::NoGradGuard no_grad;
    for (at::Tensor parameter : pipeline.parameters()) {
      if (parameter.grad().defined()) parameter.sub_(parameter.grad(), 0.1);
    }
  }
  const NamedTensors state = without_copies(pipeline.state_dict(), model.graph());
  write_tensors(folder + "/state.pt", state);
  write_tensors(folder + "/state.safetensors", state);
  write_model(folder + "/trained.pt2", model, model.graph(), state);
}

void run(const std::string& line) {
  std::istringstream words(line);
  std::string command;
  std::string first;
  std::string second;
  words >> command >> first >> second;
  if (command == "copy") {
    write_tensors(second, read_tensors(first));
  } else if (command == "export") {
    export_stages(first, second, SharedParameters::Replicate);
  } else if (command == "transmit") {
    export_stages(first, second, SharedParameters::Transmit);
  } else if (command == "train") {
    train(first, second);
  } else {
    throw std::runtime_error("there is no command " + command);
  }
}

}  // namespace
}  // namespace pipewright

int main() {
  at::set_num_threads(1);
  for (std::string line; std::getline(std::cin, line);) {
    try {
      pipewright::run(line);
      std::cout << "done" << std::endl;
    } catch (const std::exception& error) {
      std::cout << "error " << error.what() << std::endl;
    }
  }
}
