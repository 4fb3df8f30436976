// Reads and writes files that Python writes and reads. A line of the input is a command:
//   copy FROM TO        reads a file of tensors and writes another
//   export CUTS FOLDER  cuts model.pt2 (cuts.h) and writes stage0.pt2, stage1.pt2...; with the parameters and
//                       buffers of state.pt, by the model's own names, if there is one; and routes
//   transmit CUTS FOLDER  the same, where parameters of several stages are sent
//   trace CUTS FOLDER CASE  the same of a traced model (traced_models.h); and what the module itself makes of
//                       inputs_4.pt: outputs_4.pt, gradients_4.pt and buffers_4.pt; likewise of a batch of 9
//   trace_fixed CUTS FOLDER CASE  the same, traced for batches of 4 only
//   train CUTS FOLDER   a step of SGD on the weighted sum of all outputs for inputs.pt, as a pipeline; then
//                       state.pt and state.safetensors, and the whole model again, trained.pt2

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <fstream>
#include <iostream>

#include "frontend/cuts.h"
#include "frontend/traced_models.h"
#include "frontend/weighted_sum.h"
#include "pipewright/frontend/graph_stages.h"
#include "pipewright/frontend/write_model.h"
#include "pipewright/runtime/pipeline.h"
#include "pipewright/schedule/generate.h"

namespace pipewright {
namespace {

/// For each stage, where its inputs come from: stage and output, a line a stage.
void write_routes(const std::string& folder, const Routes& all) {
  std::ofstream routes(folder + "/routes");
  for (const std::vector<Source>& inputs : all) {
    for (const Source& source : inputs) routes << source.stage << ' ' << source.output << ' ';
    routes << '\n';
  }
}

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
  write_routes(folder, parts.routes);
}

NamedTensors numbered(const Values& values) {
  NamedTensors all;
  for (std::size_t at = 0; at < values.size(); ++at) {
    if (values[at].defined()) all[std::to_string(at)] = values[at].detach().clone();
  }
  return all;
}

/// What the module itself does with a batch.
void write_expected(const TracedCase& from, std::int64_t batch, const std::string& folder) {
  const StageModel model = made(from);
  const Values inputs = from.inputs(batch);
  const auto write = [&](const char* what, const NamedTensors& tensors) {
    write_tensors(folder + "/" + what + "_" + std::to_string(batch) + ".pt", tensors);
  };
  write("inputs", numbered(inputs));
  torch::manual_seed(7);
  const Values outputs = model.forward(inputs);
  write("outputs", numbered(outputs));
  const at::Tensor sum = weighted_sum(outputs);
  if (sum.requires_grad()) sum.backward();
  NamedTensors gradients;
  for (const auto& item : model.module->named_parameters()) {
    if (item.value().grad().defined()) gradients[item.key()] = item.value().grad();
  }
  write("gradients", gradients);
  NamedTensors buffers;
  for (const auto& item : model.module->named_buffers()) buffers[item.key()] = item.value();
  write("buffers", buffers);
}

void export_traced(const std::string& cuts, const std::string& folder, const std::string& name,
                   bool dynamic_batch) {
  constexpr std::int64_t kTraced = 4;
  const TracedCase& from = case_named(name);
  TraceOptions options = from.options;
  options.dynamic_batch = dynamic_batch;
  const TracedModel traced = trace(made(from), from.inputs(kTraced), options);
  const PartitionedGraph parts = partition(traced.graph, cuts_of(traced.graph, cuts));
  for (std::size_t stage = 0; stage < parts.stages.size(); ++stage) {
    write_model(folder + "/stage" + std::to_string(stage) + ".pt2", traced, parts.stages[stage],
                copied(parts.stages[stage], traced.state));
  }
  write_routes(folder, parts.routes);
  for (const std::int64_t batch : {kTraced, 2 * kTraced + 1}) write_expected(from, batch, folder);
}

void train(const std::string& cuts, const std::string& folder) {
  torch::manual_seed(1);
  const ExportedModel model(folder + "/model.pt2");
  const PartitionedGraph parts = partition(model.graph(), cuts_of(model.graph(), cuts));
  PipelineOptions options{.loss = [](const Values& outputs, const Values&) { return weighted_sum(outputs); },
                          .routes = parts.routes,
                          .tied = parts.tied,
                          .timeout = std::chrono::seconds(30)};
  options.threads_per_rank = 1;
  const auto ranks = static_cast<Rank>(parts.stages.size());
  Pipeline pipeline(make_schedule({.name = "1F1B", .ranks = ranks, .microbatches = 1}),
                    graph_stages(parts, [&](const Graph& of) { return model.load(of); }), options);
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
  std::string third;
  words >> command >> first >> second >> third;
  if (command == "copy") {
    write_tensors(second, read_tensors(first));
  } else if (command == "export") {
    export_stages(first, second, SharedParameters::Replicate);
  } else if (command == "transmit") {
    export_stages(first, second, SharedParameters::Transmit);
  } else if (command == "trace") {
    export_traced(first, second, third, /*dynamic_batch=*/true);
  } else if (command == "trace_fixed") {
    export_traced(first, second, third, /*dynamic_batch=*/false);
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
