#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "pipewright/runtime/pipeline.h"
#include "train/train_options.h"

namespace pipewright::cli {

/// What is trained: a model in stages, and the data of every step.
class Workload {
 public:
  virtual ~Workload() = default;

  virtual StageFactory stages() const = 0;
  /// The loss, and how the stages belong together.
  virtual void configure(PipelineOptions& options) const = 0;
  /// What some replicas get in a step, counted from 0; the same whenever it is asked for.
  virtual Batch batch(int step, const std::vector<int>& replicas) const = 0;
  /// Of all replicas; how many of what.
  virtual std::int64_t items_per_step() const = 0;
  virtual std::string item() const = 0;
  /// For a parameter of a stage, the names that it may have under another split.
  virtual std::vector<std::string> other_names(const std::string& name) const = 0;
  /// Writes the whole model with the parameters and buffers of its stages.
  virtual void write(const std::filesystem::path& file, const Pipeline::StateDict& of_stages) const = 0;
};

/// A small language model of characters.
std::unique_ptr<Workload> make_character_workload(const TrainOptions& options, const Schedule& schedule);

/// An exported model, with the rows of a file.
std::unique_ptr<Workload> make_model_workload(const TrainOptions& options, const Schedule& schedule,
                                              World* world);

}  // namespace pipewright::cli
