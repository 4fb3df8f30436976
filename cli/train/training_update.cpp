#include "train/training_update.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "pipewright/runtime/optimizer.h"

namespace pipewright::cli {
namespace {

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const TrainOptions& options,
                                                        std::vector<at::Tensor> parameters) {
  const double rate = options.learning_rate();
  if (options.optimizer == "sgd") {
    return std::make_unique<FusedSGD>(std::move(parameters), torch::optim::SGDOptions(rate));
  }
  return std::make_unique<FusedAdamW>(std::move(parameters), torch::optim::AdamWOptions(rate));
}

}  // namespace

TrainingUpdate::TrainingUpdate(const TrainOptions& options, Pipeline& pipeline, at::Device device)
    : pipeline_(pipeline),
      clip_(options.clip),
      optimizer_(make_optimizer(options, pipeline.parameters())),
      fused_(dynamic_cast<Update&>(*optimizer_)),
      norm_(at::zeros({}, at::TensorOptions(device))) {}

TrainingUpdate::~TrainingUpdate() = default;

void TrainingUpdate::apply(const std::optional<at::Tensor>& not_finite) {
  const at::AutoGradMode no_grad(false);
  norm_.copy_(clip_ ? pipeline_.clip_grad_norm(*clip_) : pipeline_.grad_norm());
  fused_.apply(not_finite);
}

}  // namespace pipewright::cli
