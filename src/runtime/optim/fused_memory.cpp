#include "runtime/optim/fused_memory.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

#include <string>
#include <tuple>

#include "pipewright/runtime/boundary.h"

namespace pipewright {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;

bool is_fusible_dtype(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf || dtype == at::kBFloat16;
}

void check_fusible(const at::Tensor& parameter) {
  const bool fits = parameter.layout() == at::kStrided && parameter.is_non_overlapping_and_dense() &&
                    is_fusible_dtype(parameter.scalar_type()) && (parameter.is_cpu() || parameter.is_cuda());
  if (fits) return;
  throw ArgumentError("a fused optimizer cannot take a parameter that is " + to_text(parameter) +
                      ": it has to be dense, of a floating type, on the CPU or a CUDA device");
}

void check_fusible(const at::Tensor& gradient, const at::Tensor& parameter) {
  if (gradient.layout() == at::kStrided && gradient.scalar_type() == parameter.scalar_type() &&
      gradient.device() == parameter.device()) {
    return;
  }
  throw ArgumentError(
      "a fused optimizer cannot take the gradient of a parameter that is " + to_text(parameter) + ": it is " +
      (gradient.layout() == at::kStrided ? to_text(gradient) : "sparse") + "; use one of torch::optim");
}

/// The kernels read numbers as they lie in memory.
at::Tensor laid_out_as(const at::Tensor& like, const at::Tensor& tensor) {
  return tensor.strides() == like.strides() ? tensor : at::empty_like(like).copy_(tensor);
}

/// All parameters of all groups, as (group, place among all, parameter).
template <typename Visit>
void for_each_parameter(const Optimizer& optimizer, Visit visit) {
  std::size_t at = 0;
  for (std::size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    for (const at::Tensor& parameter : optimizer.param_groups()[group].params())
      visit(group, at++, parameter);
  }
}

std::vector<ReadyParameter> ready_parameters(const Optimizer& optimizer) {
  std::vector<ReadyParameter> ready;
  for_each_parameter(optimizer, [&](std::size_t group, std::size_t at, const at::Tensor& parameter) {
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) return;
    check_fusible(parameter);
    check_fusible(gradient, parameter);
    ready.push_back({group, at, parameter, gradient});
  });
  return ready;
}

}  // namespace

void check_fusible(const Optimizer& optimizer) {
  for_each_parameter(optimizer,
                     [](std::size_t, std::size_t, const at::Tensor& parameter) { check_fusible(parameter); });
}

at::Tensor fitting_state(const at::Tensor& tensor, const at::Tensor& parameter) {
  if (!tensor.defined()) return at::zeros_like(parameter);
  const bool fits = tensor.device() == parameter.device() && tensor.dtype() == parameter.dtype() &&
                    tensor.strides() == parameter.strides();
  return fits ? tensor : at::empty_like(parameter).copy_(tensor);
}

at::Tensor whole_step(Update& update, const Optimizer::LossClosure& closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_grad(true);
    loss = closure();
  }
  update.prepare();
  update.apply({});
  return loss;
}

std::int64_t place_of(const at::Tensor& tensor) {
  return tensor.defined() ? std::bit_cast<std::int64_t>(tensor.const_data_ptr()) : 0;
}

std::vector<ReadyParameter> FusedMemory::begin(const Optimizer& optimizer) {
  prepared.clear();
  fresh.clear();
  std::vector<ReadyParameter> ready = ready_parameters(optimizer);
  for (const ReadyParameter& each : ready) prepared.push_back(each.parameter);
  return ready;
}

void FusedMemory::write_rates(const Optimizer& optimizer, const std::vector<ReadyParameter>& ready) {
  rates.resize(optimizer.param_groups().size());
  for (const ReadyParameter& each : ready) {
    const double wanted = optimizer.param_groups()[each.group].options().get_lr();
    const c10::Device device = each.parameter.device();
    Rate& rate = rates[each.group][device];
    if (!rate.tensor.defined()) {
      // On CUDA devices the kernels read no other type.
      const at::ScalarType dtype = device.is_cpu() ? at::kDouble : at::kFloat;
      rate = {at::full({}, wanted, at::TensorOptions(device).dtype(dtype)), wanted};
    } else if (rate.written != wanted) {
      rate.tensor.fill_(wanted);
      rate.written = wanted;
    }
  }
}

void FusedMemory::write_counts(const Optimizer& optimizer, const std::vector<ReadyParameter>& ready,
                               const std::vector<std::int64_t>& numbers) {
  std::size_t parameters = 0;
  for (const OptimizerParamGroup& group : optimizer.param_groups()) parameters += group.params().size();
  std::unordered_map<c10::Device, std::int64_t> of_most;
  for (std::size_t k = 0; k < ready.size(); ++k) {
    const c10::Device device = ready[k].parameter.device();
    Counts& here = counts[device];
    if (here.each.size() != parameters) {
      here.all =
          at::empty({static_cast<std::int64_t>(parameters)}, at::TensorOptions(device).dtype(at::kFloat));
      here.each = here.all.unbind();
    }
    // As a rule they are all the same. Those that take no part are not read.
    const auto [most, is_new] = of_most.emplace(device, numbers[k]);
    if (is_new) here.all.fill_(numbers[k]);
    if (most->second != numbers[k]) here.each[ready[k].at].fill_(numbers[k]);
  }
}

void FusedMemory::forget_fresh(Optimizer& optimizer) {
  for (const at::Tensor& parameter : prepared) {
    if (fresh.contains(parameter.unsafeGetTensorImpl()))
      optimizer.state().erase(parameter.unsafeGetTensorImpl());
  }
  prepared.clear();
  fresh.clear();
}

std::vector<Bundle> FusedMemory::bundles(const Optimizer& optimizer) const {
  using Key = std::tuple<std::size_t, c10::DeviceType, c10::DeviceIndex, at::ScalarType, bool>;
  std::map<Key, Bundle> all;
  for (const ReadyParameter& each : ready_parameters(optimizer)) {
    if (each.parameter.numel() == 0) continue;
    const c10::Device device = each.parameter.device();
    const bool is_fresh = fresh.contains(each.parameter.unsafeGetTensorImpl());
    const Key key{each.group, device.type(), device.index(), each.parameter.scalar_type(), is_fresh};
    Bundle& bundle = all.emplace(key, Bundle{{}, {}, {}, each.group, device, is_fresh}).first->second;
    bundle.at.push_back(each.at);
    bundle.parameters.push_back(each.parameter);
    bundle.gradients.push_back(laid_out_as(each.parameter, each.gradient));
  }
  std::vector<Bundle> list;
  list.reserve(all.size());
  for (auto& [key, bundle] : all) list.push_back(std::move(bundle));
  return list;
}

const at::Tensor& FusedMemory::rate(std::size_t group, c10::Device device) const {
  if (group >= rates.size() || !rates[group].contains(device)) throw_unprepared();
  return rates[group].at(device).tensor;
}

const at::Tensor& FusedMemory::count(std::size_t parameter, c10::Device device) const {
  const auto found = counts.find(device);
  if (found == counts.end() || parameter >= found->second.each.size()) throw_unprepared();
  return found->second.each[parameter];
}

void FusedMemory::add_places(std::vector<std::int64_t>& to) const {
  for (const auto& group : rates) {
    for (const auto& [device, rate] : group) to.push_back(place_of(rate.tensor));
  }
  for (const auto& [device, here] : counts) to.push_back(place_of(here.all));
}

void FusedMemory::throw_unprepared() {
  throw Error("a fused optimizer's apply() has a parameter that was never prepared");
}

}  // namespace pipewright
