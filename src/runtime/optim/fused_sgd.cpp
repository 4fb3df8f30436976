#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_fused_sgd.h>

#include <utility>

#include "pipewright/runtime/optimizer.h"
#include "runtime/optim/fused_memory.h"

namespace pipewright {

using torch::optim::SGDOptions;
using torch::optim::SGDParamState;

namespace {

/// On the CPU libtorch's kernel, up to 2.13 at least, leaves most of a tensor of 16 bits as it is: these are
/// computed as float32.
std::vector<at::Tensor> wide(const std::vector<at::Tensor>& narrow) {
  std::vector<at::Tensor> all;
  all.reserve(narrow.size());
  for (const at::Tensor& each : narrow) all.push_back(each.detach().to(at::kFloat));
  return all;
}

}  // namespace

FusedSGD::FusedSGD(const std::vector<torch::optim::OptimizerParamGroup>& groups, SGDOptions defaults)
    : SGD(groups, std::move(defaults)), fused_(std::make_unique<FusedMemory>()) {
  check_fusible(*this);
}
FusedSGD::FusedSGD(std::vector<at::Tensor> parameters, SGDOptions defaults)
    : FusedSGD({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}
FusedSGD::~FusedSGD() = default;

at::Tensor FusedSGD::step(LossClosure closure) { return whole_step(*this, closure); }

void FusedSGD::prepare() {
  const at::AutoGradMode no_grad(false);
  const std::vector<ReadyParameter> ready = fused_->begin(*this);
  for (const ReadyParameter& each : ready) {
    const auto& options = static_cast<const SGDOptions&>(param_groups()[each.group].options());
    if (options.momentum() == 0) continue;
    auto& state = fused_->state<SGDParamState>(*this, each.parameter);
    state.momentum_buffer(fitting_state(state.momentum_buffer(), each.parameter));
  }
  fused_->write_rates(*this, ready);
}

void FusedSGD::apply(const std::optional<at::Tensor>& not_finite) {
  const at::AutoGradMode no_grad(false);
  for (const Bundle& bundle : fused_->bundles(*this)) {
    const auto& options = static_cast<const SGDOptions&>(param_groups()[bundle.group].options());
    std::vector<at::Tensor> momenta;
    if (options.momentum() != 0) {
      for (const at::Tensor& parameter : bundle.parameters) {
        momenta.push_back(fused_->state_of<SGDParamState>(*this, parameter).momentum_buffer());
      }
    }
    const bool widen = bundle.device.is_cpu() && bundle.parameters.front().element_size() < 4;
    const std::vector<at::Tensor> parameters = widen ? wide(bundle.parameters) : bundle.parameters;
    const std::vector<at::Tensor> gradients = widen ? wide(bundle.gradients) : bundle.gradients;
    const std::vector<at::Tensor> sums = widen ? wide(momenta) : momenta;
    // A momentum begins as the first gradient, whatever the dampening.
    at::_fused_sgd_(parameters, gradients, sums, options.weight_decay(), options.momentum(),
                    fused_->rate(bundle.group, bundle.device), options.dampening(), options.nesterov(),
                    /*maximize=*/false, /*is_first_step=*/bundle.fresh, /*grad_scale=*/{}, not_finite);
    if (!widen) continue;
    at::_foreach_copy_(bundle.parameters, parameters);
    if (!momenta.empty()) at::_foreach_copy_(momenta, sums);
  }
}

void FusedSGD::revert() { fused_->forget_fresh(*this); }

std::vector<std::int64_t> FusedSGD::fixed() const {
  std::vector<std::int64_t> numbers;
  for (const auto& group : param_groups()) {
    const auto& options = static_cast<const SGDOptions&>(group.options());
    for (const double number : {options.momentum(), options.dampening(), options.weight_decay()}) {
      numbers.push_back(bits_of(number));
    }
    numbers.push_back(options.nesterov() ? 1 : 0);
    for (const at::Tensor& parameter : group.params()) {
      const auto found = state().find(parameter.unsafeGetTensorImpl());
      numbers.push_back(found == state().end()
                            ? 0
                            : place_of(static_cast<const SGDParamState&>(*found->second).momentum_buffer()));
    }
  }
  fused_->add_places(numbers);
  return numbers;
}

}  // namespace pipewright
