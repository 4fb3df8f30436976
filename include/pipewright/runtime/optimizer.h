#pragma once

#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <optional>
#include <vector>

#include "pipewright/runtime/update.h"

namespace pipewright {

struct FusedMemory;

/// torch's AdamW, with one kernel for all parameters of a group, device and dtype. Options, groups, state and
/// what is saved are the same; learning rates may be changed at any time. Parameters are dense, of float32,
/// float64, float16 or bfloat16, on the CPU or CUDA devices; others, and sparse gradients, throw
/// ArgumentError.
class FusedAdamW : public torch::optim::AdamW, public Update {
 public:
  explicit FusedAdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                      torch::optim::AdamWOptions defaults = {});
  explicit FusedAdamW(std::vector<at::Tensor> parameters, torch::optim::AdamWOptions defaults = {});
  ~FusedAdamW() override;

  /// prepare() and apply().
  at::Tensor step(LossClosure closure = nullptr) override;

  void prepare() override;
  void apply(const std::optional<at::Tensor>& not_finite) override;
  void revert() override;
  std::vector<std::int64_t> fixed() const override;

 private:
  std::unique_ptr<FusedMemory> fused_;
};

/// The same for torch's SGD.
class FusedSGD : public torch::optim::SGD, public Update {
 public:
  explicit FusedSGD(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                    torch::optim::SGDOptions defaults);
  explicit FusedSGD(std::vector<at::Tensor> parameters, torch::optim::SGDOptions defaults);
  ~FusedSGD() override;

  /// prepare() and apply().
  at::Tensor step(LossClosure closure = nullptr) override;

  void prepare() override;
  void apply(const std::optional<at::Tensor>& not_finite) override;
  void revert() override;
  std::vector<std::int64_t> fixed() const override;

 private:
  std::unique_ptr<FusedMemory> fused_;
};

}  // namespace pipewright
