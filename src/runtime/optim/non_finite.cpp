#include "runtime/optim/non_finite.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include <cmath>
#include <limits>
#include <utility>

namespace pipewright {
namespace {

/// The place of the first that is not finite, or −1. Waits once for their device.
std::int64_t first_non_finite(const std::vector<at::Tensor>& numbers) {
  if (numbers.empty()) return -1;
  std::vector<at::Tensor> alike;
  alike.reserve(numbers.size());
  for (const at::Tensor& each : numbers) {
    alike.push_back(each.detach().to(numbers.front().device(), at::kDouble).reshape({}));
  }
  const at::Tensor finite = at::isfinite(at::stack(alike)).cpu();
  for (std::int64_t at = 0; at < finite.numel(); ++at) {
    if (!finite[at].item<bool>()) return at;
  }
  return -1;
}

std::string where(Stage stage, const Placement& placement) {
  return " (stage " + std::to_string(stage) + ", rank " +
         std::to_string(placement[static_cast<std::size_t>(stage)]) + ")";
}

}  // namespace

std::string non_finite_loss(const std::vector<at::Tensor>& losses, const Placement& placement) {
  const std::int64_t at = first_non_finite(losses);
  if (at < 0) return {};
  const bool nan = std::isnan(losses[static_cast<std::size_t>(at)].item<double>());
  const auto last = static_cast<Stage>(placement.size()) - 1;
  return "the loss of microbatch " + std::to_string(at) + where(last, placement) + " is " +
         (nan ? "nan" : "inf");
}

std::string non_finite_gradient(const std::vector<LocalParameter>& parameters, const Placement& placement) {
  const at::AutoGradMode no_grad(false);
  std::vector<at::Tensor> largest;
  std::vector<const LocalParameter*> of;
  for (const LocalParameter& each : parameters) {
    at::Tensor grad = each.tensor.grad();
    if (!grad.defined() || grad.numel() == 0) continue;
    if (grad.is_sparse()) grad = grad.coalesce().values();
    if (grad.numel() == 0) continue;
    largest.push_back(at::linalg_vector_norm(grad, std::numeric_limits<double>::infinity()));
    of.push_back(&each);
  }
  const std::int64_t at = first_non_finite(largest);
  if (at < 0) return {};
  const LocalParameter& found = *of[static_cast<std::size_t>(at)];
  const bool nan = std::isnan(largest[static_cast<std::size_t>(at)].item<double>());
  return "the gradient of '" + found.name + "'" + where(found.stage, placement) + " has " +
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
