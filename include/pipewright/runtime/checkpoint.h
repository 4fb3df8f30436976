#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/runtime/pipeline.h"
#include "pipewright/runtime/world.h"

namespace torch::optim {
class Optimizer;
}

namespace pipewright {

class Files;

/// How far a training has come.
struct TrainingProgress {
  std::int64_t step = 0;
  /// Whatever else it takes to go on: the position in the data, say.
  std::map<std::string, std::string> notes = {};
};

struct CheckpointOptions {
  /// One that all processes see.
  std::filesystem::path directory;
  /// So many of the newest are kept; 0: all.
  int keep = 0;
  /// That of the pipeline.
  std::shared_ptr<World> world = {};
  /// Under which other names a parameter may have been saved, where a model has several for one and which of
  /// them a pipeline uses depends on the split.
  std::function<std::vector<std::string>(const std::string& name)> other_names = {};
};

/// The checkpoints in a directory, one for each saved step: parameters, buffers and the state of the
/// optimizer by their global names, in safetensors files, and the state of libtorch's generator of random
/// numbers.
///
/// A checkpoint is there as a whole or not at all, whatever happens while it is saved. It can be
/// loaded under another schedule, split, placement or number of processes.
/// All processes call these functions at the same point, and all throw where one of them fails.
class Checkpoints {
 public:
  explicit Checkpoints(CheckpointOptions options);
  /// Through other file operations than the system's; they outlive this object.
  Checkpoints(CheckpointOptions options, Files& files);

  /// Each process writes its part. `optimizer` works on the pipeline's parameters: SGD, Adam or AdamW; or
  /// null. Throws Error where it could not be saved: then nothing has changed.
  void save(const Pipeline& pipeline, const torch::optim::Optimizer* optimizer,
            const TrainingProgress& progress) const;

  /// The newest one; nothing, and nothing is loaded, where there is none. Throws Error, before anything is
  /// changed, that names a file that is damaged, and what is missing or of another shape.
  std::optional<TrainingProgress> load(Pipeline& pipeline, torch::optim::Optimizer* optimizer) const;

  /// Where the newest is.
  std::optional<std::filesystem::path> newest() const;

 private:
  CheckpointOptions options_;
  Files& files_;
};

}  // namespace pipewright
