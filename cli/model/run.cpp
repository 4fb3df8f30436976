#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>

#include "model/commands.h"
#include "model/model_options.h"
#include "model/row_data.h"
#include "pipewright/base/error.h"
#include "pipewright/frontend/tensor_file.h"
#include "pipewright/runtime/memory.h"
#include "pipewright/schedule/generate.h"
#include "torch/command.h"
#include "torch/devices.h"
#include "torch/join_world.h"

namespace pipewright::cli {
namespace {

struct RunOptions {
  ModelOptions model;
  std::string inputs;
  std::string outputs;
  int ranks = 1;
  int microbatches = 0;
  int stages_per_rank = 1;
  int threads_per_rank = 0;
  DeviceOptions device;
};

void run_model(const RunOptions& options) {
  if (options.ranks < 1 || options.stages_per_rank < 1 || options.microbatches < 0) {
    throw ArgumentError("--ranks, --stages-per-rank and --microbatches must be at least 1");
  }
  options.device.check();
  keep_freed_memory();
  const std::shared_ptr<World> world = join_world();
  const CutModel cut(options.model, options.ranks * options.stages_per_rank, world.get());
  const RowData data(options.inputs, cut.graph());
  const auto as_exported = static_cast<int>((data.rows() + data.exported_rows() - 1) /
                                            std::max<std::int64_t>(data.exported_rows(), 1));
  const Schedule schedule = make_schedule(
      {.name = "ForwardOnly",
       .ranks = options.ranks,
       .microbatches = options.microbatches > 0 ? options.microbatches : std::max(as_exported, 1),
       .stages_per_rank = options.stages_per_rank});
  const std::vector<at::Device> devices = options.device.by_rank(options.ranks);
  const StageDevices device_of = by_stage(devices, schedule.placement);
  const c10::DeviceGuard current(devices.front());
  PipelineOptions wanted{.threads_per_rank = options.threads_per_rank, .world = world, .devices = devices};
  cut.connect(wanted);
  wanted.split.inputs = data.chunks();
  Pipeline pipeline(schedule, cut.stages(device_of), std::move(wanted));
  Values inputs = data.inputs();
  bring(inputs, device_of(0));
  const StepResult result = pipeline.eval({.inputs = inputs, .targets = {}}, {.outputs = true});
  if (world && world->rank() > 0) return;
  NamedTensors named;
  std::size_t at = 0;
  for (const Graph::Port& port : cut.graph().outputs) {
    if (std::holds_alternative<ValueId>(port.is)) named[port.name] = result.outputs.at(at++);
  }
  write_tensors(options.outputs, named);
  std::cerr << "wrote " << options.outputs << ": " << data.rows() << " rows\n";
}

}  // namespace

void add_run_command(CLI::App& app) {
  auto* command = add_command(app, "run", "Run an exported model on the rows of a file, in a pipeline");
  const auto options = std::make_shared<RunOptions>();
  options->model.add_to(*command)->required();
  command
      ->add_option("--inputs", options->inputs,
                   "The rows, .pt or .safetensors: inputs by name or position 0, 1, …")
      ->required();
  command
      ->add_option("--outputs", options->outputs,
                   "Write the outputs here, .pt or .safetensors, by their names")
      ->required();
  command->add_option("-p,--ranks", options->ranks, "Number of pipeline ranks, a thread each")
      ->capture_default_str();
  command->add_option(
      "-m,--microbatches", options->microbatches,
      "Number of microbatches [so that each has as many rows as the model was exported with]");
  command->add_option("-v,--stages-per-rank", options->stages_per_rank, "Stages on each rank")
      ->capture_default_str();
  command
      ->add_option("--threads-per-rank", options->threads_per_rank,
                   "Threads of one operator; 0: the cores shared out among the ranks")
      ->capture_default_str();
  options->device.add_to(*command);
  command->callback([options] { with_short_errors([&] { run_model(*options); }); });
}

}  // namespace pipewright::cli
