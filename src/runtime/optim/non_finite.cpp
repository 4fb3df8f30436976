#include "runtime/optim/non_finite.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <span>
#include <utility>

namespace pipewright {
namespace {

/// Those of a gradient that is sparse, too.
at::Tensor values_of(const at::Tensor& gradient) {
  return gradient.is_sparse() ? gradient.coalesce().values() : gradient;
}

std::string where(Stage stage, const Placement& placement) {
  return " (stage " + std::to_string(stage) + ", rank " +
         std::to_string(placement[static_cast<std::size_t>(stage)]) + ")";
}

}  // namespace

at::Tensor telling_numbers(const std::vector<at::Tensor>& losses, const std::vector<at::Tensor>& gradients) {
  const at::AutoGradMode no_grad(false);
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> numbers;
  values.reserve(gradients.size());
  numbers.reserve(losses.size() + gradients.size());
  for (const at::Tensor& loss : losses) numbers.push_back(loss.detach().reshape({}));
  for (const at::Tensor& gradient : gradients) values.push_back(values_of(gradient));
  // The largest of nothing is not defined.
  for (at::Tensor& each : values) {
    if (each.numel() == 0) each = at::zeros({1}, each.options());
  }
  if (!values.empty()) {
    for (at::Tensor& each : at::_foreach_norm(values, std::numeric_limits<double>::infinity())) {
      numbers.push_back(std::move(each));
    }
  }
  if (numbers.empty()) return {};
  for (at::Tensor& each : numbers) each = each.to(numbers.front().device());
  return at::stack(numbers).to(at::kDouble);
}

at::Tensor any_non_finite(const at::Tensor& telling) {
  return at::isfinite(telling).all().logical_not().to(at::kFloat);
}

std::string what_is_not_finite(const at::Tensor& telling, std::size_t losses,
                               const std::vector<LocalParameter>& parameters, const Placement& placement) {
  if (!telling.defined()) return {};
  const at::Tensor here = telling.cpu();
  const std::span numbers(here.const_data_ptr<double>(), static_cast<std::size_t>(here.numel()));
  const auto found = std::ranges::find_if(numbers, [](double number) { return !std::isfinite(number); });
  if (found == numbers.end()) return {};
  const bool nan = std::isnan(*found);
  const auto at = static_cast<std::size_t>(found - numbers.begin());
  if (at < losses) {
    const auto last = static_cast<Stage>(placement.size()) - 1;
    return "the loss of microbatch " + std::to_string(at) + where(last, placement) + " is " +
           (nan ? "nan" : "inf");
  }
  std::vector<LocalParameter> of;
  std::ranges::copy_if(parameters, std::back_inserter(of),
                       [](const LocalParameter& each) { return each.tensor.grad().defined(); });
  const LocalParameter& parameter = of.at(at - losses);
  return "the gradient of '" + parameter.name + "'" + where(parameter.stage, placement) + " has " +
         (nan ? "a nan" : "an inf");
}

GradientsAside::GradientsAside(const std::vector<LocalParameter>& parameters) {
  for (const LocalParameter& each : parameters) {
    aside_.push_back({each.tensor, std::exchange(each.tensor.mutable_grad(), {})});
  }
}

GradientsAside::~GradientsAside() {
  const at::AutoGradMode no_grad(false);
  for (Aside& each : aside_) {
    at::Tensor& gradient = each.parameter.mutable_grad();
    if (!keep_new_ || !gradient.defined()) {
      gradient = std::move(each.gradient);
    } else if (each.gradient.defined()) {
      gradient = gradient + each.gradient;
    }
  }
}

}  // namespace pipewright
