#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "pipewright/frontend/graph.h"

namespace pipewright {

struct ProgramDescription;

/// A model that `torch.export.save` has written. Weights stay in the file until they are asked for.
class ExportedModel {
 public:
  /// Throws Error that names the file for one that is damaged, of another format, or not supported.
  explicit ExportedModel(const std::filesystem::path& file);
  ~ExportedModel();
  ExportedModel(ExportedModel&&) noexcept;
  ExportedModel& operator=(ExportedModel&&) noexcept;

  const Graph& graph() const;

  /// What else the file says of it: for write_model.
  const ProgramDescription& description() const;

  /// The tensors of a graph's parameters and buffers, by name: this model's own graph, or a part of it. They
  /// are mapped from the file, and copied page by page as they are changed; each call gives others. Names of
  /// one tensor give one tensor.
  std::map<std::string, at::Tensor> load(const Graph& of) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pipewright
