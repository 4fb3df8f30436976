#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>

#include <utility>

#include "pipewright/runtime/optimizer.h"
#include "runtime/optim/fused_memory.h"

namespace pipewright {

using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;

FusedAdamW::FusedAdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups, AdamWOptions defaults)
    : AdamW(groups, std::move(defaults)), fused_(std::make_unique<FusedMemory>()) {
  check_fusible(*this);
}
FusedAdamW::FusedAdamW(std::vector<at::Tensor> parameters, AdamWOptions defaults)
    : FusedAdamW({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}
FusedAdamW::~FusedAdamW() = default;

at::Tensor FusedAdamW::step(LossClosure closure) { return whole_step(*this, closure); }

void FusedAdamW::prepare() {
  const at::AutoGradMode no_grad(false);
  const std::vector<ReadyParameter> ready = fused_->begin(*this);
  std::vector<std::int64_t> counts;
  counts.reserve(ready.size());
  for (const ReadyParameter& each : ready) {
    const auto& options = static_cast<const AdamWOptions&>(param_groups()[each.group].options());
    auto& state = fused_->state<AdamWParamState>(*this, each.parameter);
    state.exp_avg(fitting_state(state.exp_avg(), each.parameter));
    state.exp_avg_sq(fitting_state(state.exp_avg_sq(), each.parameter));
    if (options.amsgrad()) state.max_exp_avg_sq(fitting_state(state.max_exp_avg_sq(), each.parameter));
    state.step(state.step() + 1);
    counts.push_back(state.step());
  }
  fused_->write_rates(*this, ready);
  fused_->write_counts(*this, ready, counts);
}

void FusedAdamW::apply(const std::optional<at::Tensor>& not_finite) {
  const at::AutoGradMode no_grad(false);
  for (const Bundle& bundle : fused_->bundles(*this)) {
    const auto& options = static_cast<const AdamWOptions&>(param_groups()[bundle.group].options());
    std::vector<at::Tensor> means;
    std::vector<at::Tensor> squares;
    std::vector<at::Tensor> largest;
    std::vector<at::Tensor> counts;
    for (std::size_t k = 0; k < bundle.at.size(); ++k) {
      const auto& state = fused_->state_of<AdamWParamState>(*this, bundle.parameters[k]);
      means.push_back(state.exp_avg());
      squares.push_back(state.exp_avg_sq());
      if (options.amsgrad()) largest.push_back(state.max_exp_avg_sq());
      counts.push_back(fused_->count(bundle.at[k], bundle.device));
    }
    const auto [beta1, beta2] = options.betas();
    at::_fused_adamw_(bundle.parameters, bundle.gradients, means, squares, largest, counts,
                      fused_->rate(bundle.group, bundle.device), beta1, beta2, options.weight_decay(),
                      options.eps(), options.amsgrad(), /*maximize=*/false, /*grad_scale=*/{}, not_finite);
  }
}

void FusedAdamW::revert() {
  for (const at::Tensor& parameter : fused_->prepared) {
    const auto found = state().find(parameter.unsafeGetTensorImpl());
    auto& own = static_cast<AdamWParamState&>(*found->second);
    own.step(own.step() - 1);
  }
  fused_->forget_fresh(*this);
}

std::vector<std::int64_t> FusedAdamW::fixed() const {
  std::vector<std::int64_t> numbers;
  for (const auto& group : param_groups()) {
    const auto& options = static_cast<const AdamWOptions&>(group.options());
    const auto [beta1, beta2] = options.betas();
    for (const double number : {beta1, beta2, options.weight_decay(), options.eps()}) {
      numbers.push_back(bits_of(number));
    }
    numbers.push_back(options.amsgrad() ? 1 : 0);
    for (const at::Tensor& parameter : group.params()) {
      const auto found = state().find(parameter.unsafeGetTensorImpl());
      numbers.push_back(found != state().end() ? 1 : 0);
      if (found == state().end()) continue;
      const auto& own = static_cast<const AdamWParamState&>(*found->second);
      for (const at::Tensor& tensor : {own.exp_avg(), own.exp_avg_sq(), own.max_exp_avg_sq()}) {
        numbers.push_back(place_of(tensor));
      }
    }
  }
  fused_->add_places(numbers);
  return numbers;
}

}  // namespace pipewright
