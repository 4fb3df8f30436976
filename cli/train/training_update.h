#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "pipewright/runtime/pipeline.h"
#include "pipewright/runtime/update.h"
#include "train/train_options.h"

namespace torch::optim {
class Optimizer;
}

namespace pipewright::cli {

/// What follows the gradients of a training step: their norm is taken, they are clipped where that is asked
/// for, and the optimizer makes its step.
class TrainingUpdate : public Update {
 public:
  /// `pipeline`: kept by reference. `device`: where the norm is to be.
  TrainingUpdate(const TrainOptions& options, Pipeline& pipeline, at::Device device);
  ~TrainingUpdate() override;

  torch::optim::Optimizer& optimizer() const { return *optimizer_; }
  /// Of the last step's gradients, before clipping.
  const at::Tensor& norm() const { return norm_; }

  void prepare() override { fused_.prepare(); }
  void apply(const std::optional<at::Tensor>& not_finite) override;
  void revert() override { fused_.revert(); }
  std::vector<std::int64_t> fixed() const override { return fused_.fixed(); }

 private:
  Pipeline& pipeline_;
  std::optional<double> clip_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  Update& fused_;    // the same
  at::Tensor norm_;  // keeps its place
};

}  // namespace pipewright::cli
