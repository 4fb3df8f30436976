#include "runtime/optim/tied.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <ranges>

#include "pipewright/base/error.h"
#include "pipewright/runtime/boundary.h"

namespace pipewright {

TiedParameters::TiedParameters(const std::vector<std::vector<std::string>>& groups,
                               const NamedTensors& parameters) {
  for (const std::vector<std::string>& names : groups) {
    std::vector<at::Tensor>& group = groups_.emplace_back();
    for (const std::string& name : names) {
      const auto found = std::ranges::find(parameters, name, [](const auto& named) { return named.first; });
      if (found == parameters.end()) {
        throw ArgumentError("tied parameter '" + name + "' is on no stage");
      }
      if (!group.empty() && group.front().sizes() != found->second.sizes()) {
        throw ArgumentError("tied parameters differ in shape: '" + names.front() + "' is " +
                            to_text(group.front()) + ", '" + name + "' is " + to_text(found->second));
      }
      group.push_back(found->second);
    }
  }
}

void TiedParameters::share_values() const {
  const at::AutoGradMode no_grad(false);
  for (const auto& group : groups_) {
    for (const at::Tensor& copy : group | std::views::drop(1)) copy.copy_(group.front());
  }
}

void TiedParameters::before_step() const {
  for (const auto& group : groups_) {
    for (const at::Tensor& copy : group | std::views::drop(1)) copy.mutable_grad().reset();
  }
}

void TiedParameters::after_step() const {
  const at::AutoGradMode no_grad(false);
  for (const auto& group : groups_) {
    at::Tensor sum;
    for (const at::Tensor& each : group) {
      const at::Tensor& grad = each.grad();
      if (grad.defined()) sum = sum.defined() ? sum + grad.to(sum.device()) : grad;
    }
    if (!sum.defined()) continue;
    group.front().mutable_grad() = sum;
    for (const at::Tensor& copy : group | std::views::drop(1)) {
      copy.mutable_grad() = sum.to(copy.device(), /*non_blocking=*/false, /*copy=*/true);
    }
  }
}

bool TiedParameters::is_copy(const at::Tensor& parameter) const {
  return std::ranges::any_of(groups_, [&](const auto& group) {
    return std::ranges::any_of(group | std::views::drop(1),
                               [&](const at::Tensor& copy) { return copy.is_same(parameter); });
  });
}

}  // namespace pipewright
