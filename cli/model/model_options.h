#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "pipewright/frontend/exported_model.h"
#include "pipewright/frontend/graph_stages.h"
#include "pipewright/frontend/partition.h"
#include "pipewright/frontend/split.h"
#include "pipewright/frontend/tensor_file.h"
#include "pipewright/runtime/pipeline.h"

namespace pipewright::cli {

/// A model that `torch.export.save` has written, and where it is cut.
struct ModelOptions {
  std::string file;
  /// Modules that a stage begins with, or ends with.
  std::vector<std::string> at;
  std::vector<std::string> after;
  /// Where the model has marks for it.
  bool at_marks = false;
  /// `embed,layers.0`: the modules of a stage, for each.
  std::vector<std::string> modules;
  /// By which stages are balanced where nothing is said of the above: estimated, measured, parameters.
  std::string costs = "estimated";
  /// What becomes of a parameter that several stages use: replicate, transmit.
  std::string shared = "replicate";
  /// Parameters and buffers by their names in Python, instead of those in the file.
  std::string weights;

  /// The option of the file.
  CLI::Option* add_to(CLI::App& app);
  bool says_where() const { return !at.empty() || !after.empty() || !modules.empty() || at_marks; }
};

/// An exported model in stages.
class CutModel {
 public:
  /// `stages` 0: as many as the options say. The processes of a world, where there is one, cut alike.
  /// Throws ArgumentError for options that do not fit the model, or that number.
  CutModel(const ModelOptions& options, Stage stages, World* world);

  const Graph& graph() const { return model_.graph(); }
  const ExportedModel& model() const { return model_; }
  const std::vector<std::size_t>& cuts() const { return cuts_; }
  const NodeCosts& costs() const { return costs_; }
  const PartitionedGraph& parts() const { return parts_; }

  /// The parameters and buffers of a stage, or of the whole graph.
  NamedTensors load(const Graph& of) const;
  /// REQUIRES: this object outlives what it returns.
  StageFactory stages(StageDevices device_of) const;
  /// How its stages belong together.
  void connect(PipelineOptions& options) const;

 private:
  ExportedModel model_;
  NamedTensors weights_;  // instead of the model's
  NodeCosts costs_;
  std::vector<std::size_t> cuts_;
  PartitionedGraph parts_;
};

}  // namespace pipewright::cli
