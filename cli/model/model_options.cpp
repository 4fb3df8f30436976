#include "model/model_options.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "pipewright/base/error.h"

namespace pipewright::cli {
namespace {

constexpr const char* kEstimated = "estimated";
constexpr const char* kMeasured = "measured";
constexpr const char* kReplicate = "replicate";
constexpr const char* kTransmit = "transmit";
constexpr const char* kParameters = "parameters";

std::vector<std::string> names_in(const std::string& list) {
  std::vector<std::string> names;
  std::istringstream text(list);
  for (std::string name; std::getline(text, name, ',');) {
    if (!name.empty()) names.push_back(name);
  }
  return names;
}

/// Of the sizes that the model was exported with.
Values sample_inputs(const Graph& graph) {
  Values inputs;
  for (const Graph::Port& port : graph.inputs) {
    const auto* value = std::get_if<ValueId>(&port.is);
    if (!value) continue;
    const auto known = graph.recorded.find(*value);
    if (known == graph.recorded.end()) {
      throw Error("the file does not say how large the input '" + port.name +
                  "' was: use --costs estimated or parameters");
    }
    inputs.push_back(at::zeros(known->second.sizes, known->second.dtype));
  }
  return inputs;
}

NodeCosts costs_of(const ExportedModel& model, const std::string& by) {
  if (by == kParameters) return parameter_costs(model.graph());
  if (by == kEstimated) return estimate_costs(model.graph());
  return measure_costs(model.graph(), model.load(model.graph()), sample_inputs(model.graph()));
}

/// What the first process has measured, for all.
NodeCosts measured_together(const ExportedModel& model, World* world) {
  if (!world) return costs_of(model, kMeasured);
  std::ostringstream own;
  own.precision(std::numeric_limits<double>::max_digits10);
  if (world->rank() == 0) {
    for (const double cost : costs_of(model, kMeasured)) own << cost << ' ';
  }
  std::istringstream first(world->all_gather(own.str()).front());
  NodeCosts costs;
  for (double cost = 0; first >> cost;) costs.push_back(cost);
  return costs;
}

std::vector<std::size_t> cuts_of(const ModelOptions& options, const Graph& graph, Stage stages,
                                 const NodeCosts& costs) {
  std::vector<std::size_t> cuts;
  if (!options.modules.empty()) {
    std::vector<std::vector<std::string>> lists;
    lists.reserve(options.modules.size());
    for (const std::string& list : options.modules) lists.push_back(names_in(list));
    cuts = listed_cuts(graph, lists);
  } else if (options.says_where()) {
    if (options.at_marks) cuts = marked_cuts(graph);
    for (const std::string& module : options.at) cuts.push_back(cut_before(graph, module));
    for (const std::string& module : options.after) cuts.push_back(cut_after(graph, module));
    std::ranges::sort(cuts);
  } else {
    return balanced_cuts(graph, std::max(stages, 1), costs);
  }
  if (stages > 0 && cuts.size() + 1 != static_cast<std::size_t>(stages)) {
    throw ArgumentError(std::to_string(stages) + " stages are wanted, and the model is cut into " +
                        std::to_string(cuts.size() + 1));
  }
  return cuts;
}

}  // namespace

CLI::Option* ModelOptions::add_to(CLI::App& app) {
  auto* model = app.add_option("model", file, "A model that torch.export.save has written, MODEL.pt2");
  auto* lists = app.add_option("--modules", modules,
                               "The modules of a stage, a,b,c; once for each stage, in their order");
  app.add_option("--at", at, "A stage begins with this module; may be given several times")->excludes(lists);
  app.add_option("--after", after, "A stage ends with this module; may be given several times")
      ->excludes(lists);
  app.add_flag("--at-marks", at_marks, "Stages begin where the model calls pipe_split")->excludes(lists);
  app.add_option("--costs", costs, "What is balanced where none of these says where to cut")
      ->check(CLI::IsMember({kEstimated, kMeasured, kParameters}))
      ->capture_default_str();
  app.add_option("--shared", shared,
                 "A parameter that several stages use: a copy on each, or sent along with each microbatch")
      ->check(CLI::IsMember({kReplicate, kTransmit}))
      ->capture_default_str();
  app.add_option("--weights", weights,
                 "Parameters and buffers instead of the model's own, .pt or .safetensors, as --save writes");
  return model;
}

CutModel::CutModel(const ModelOptions& options, Stage stages, World* world)
    : model_(options.file),
      weights_(options.weights.empty() ? NamedTensors() : read_tensors(options.weights)),
      costs_(options.costs == kMeasured ? measured_together(model_, world) : costs_of(model_, options.costs)),
      cuts_(cuts_of(options, model_.graph(), stages, costs_)),
      parts_(partition(
          model_.graph(), cuts_,
          options.shared == kTransmit ? SharedParameters::Transmit : SharedParameters::Replicate)) {}

StageFactory CutModel::stages(StageDevices device_of) const {
  return graph_stages(parts_, [this](const Graph& of) { return load(of); }, std::move(device_of));
}

NamedTensors CutModel::load(const Graph& of) const {
  NamedTensors state = model_.load(of);
  if (weights_.empty()) return state;
  const at::NoGradGuard no_grad;
  for (auto& [name, tensor] : state) {
    if (graph().non_persistent_buffers.contains(name)) continue;
    const auto found = weights_.find(name.substr(0, name.find(kCopy)));
    if (found == weights_.end()) throw Error("--weights has no '" + name + "'");
    if (found->second.sizes() != tensor.sizes()) throw Error("--weights has '" + name + "' of another size");
    tensor.copy_(found->second);
  }
  return state;
}

void CutModel::connect(PipelineOptions& options) const {
  options.tied = parts_.tied;
  options.routes = parts_.routes;
}

}  // namespace pipewright::cli
