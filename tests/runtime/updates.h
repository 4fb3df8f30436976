#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/runtime/optimizer.h"
#include "pipewright/runtime/pipeline.h"

namespace pipewright {

/// An update that notes what is called, and does what another does after what a test does before.
class Noted : public Update {
 public:
  explicit Noted(
      Update& inner, std::function<void()> before_apply = [] {})
      : inner_(inner), before_apply_(std::move(before_apply)) {}

  void prepare() override {
    calls.emplace_back("prepare");
    inner_.prepare();
  }
  void apply(const std::optional<at::Tensor>& not_finite) override {
    calls.emplace_back("apply");
    before_apply_();
    inner_.apply(not_finite);
  }
  void revert() override {
    calls.emplace_back("revert");
    inner_.revert();
  }
  std::vector<std::int64_t> fixed() const override { return inner_.fixed(); }

  std::vector<std::string> calls;

 private:
  Update& inner_;
  std::function<void()> before_apply_;
};

/// Of SGD with momentum: whose steps, unlike Adam's, are small where gradients are only rounding.
inline std::unique_ptr<FusedSGD> fused_sgd(const Pipeline& pipeline) {
  return std::make_unique<FusedSGD>(pipeline.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
}
/// Of AdamW, with an epsilon that does the same for it.
inline std::unique_ptr<FusedAdamW> fused_adamw(const Pipeline& pipeline) {
  return std::make_unique<FusedAdamW>(pipeline.parameters(), torch::optim::AdamWOptions(0.01).eps(1e-2));
}

/// What AdamW counts as made, over all parameters.
inline std::int64_t steps_of(const torch::optim::Optimizer& optimizer) {
  std::int64_t sum = 0;
  for (const auto& [parameter, state] : optimizer.state()) {
    sum += static_cast<const torch::optim::AdamWParamState&>(*state).step();
  }
  return sum;
}

/// Copies of a pipeline's parameters.
inline std::vector<at::Tensor> copies_of(const Pipeline& pipeline) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& each : pipeline.parameters()) all.push_back(each.detach().clone());
  return all;
}

}  // namespace pipewright
