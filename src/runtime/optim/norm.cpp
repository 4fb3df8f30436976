#include "runtime/optim/norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "pipewright/base/error.h"
#include "runtime/world/world_impl.h"

namespace pipewright {

at::Tensor norm_of(const std::vector<at::Tensor>& tensors, double p) {
  if (!(p >= 1)) throw ArgumentError("a norm needs p from 1 to infinity, not " + std::to_string(p));
  if (tensors.empty()) return at::zeros({});
  const at::AutoGradMode no_grad(false);
  std::vector<at::Tensor> norms = at::_foreach_norm(tensors, p);
  for (at::Tensor& norm : norms) norm = norm.to(tensors.front().device(), at::kFloat);
  return at::linalg_vector_norm(at::stack(norms), p);
}

at::Tensor norm_over(World& world, const at::Tensor& own, double p) {
  const at::AutoGradMode no_grad(false);
  std::vector<at::Tensor> all = {own.to(at::kCPU, at::kDouble).reshape({1}).clone()};
  c10d::AllreduceOptions options;
  if (std::isinf(p)) {
    options.reduceOp = c10d::ReduceOp::MAX;
  } else {
    all[0].pow_(p);
  }
  world.impl().finish(world.impl().control().allreduce(all, options));
  if (!std::isinf(p)) all[0].pow_(1 / p);
  return all[0].reshape({}).to(own.device(), own.scalar_type());
}

void scale_to_norm(const std::vector<at::Tensor>& grads, const at::Tensor& norm, double max_norm) {
  const at::AutoGradMode no_grad(false);
  // The small number keeps a norm of 0 from dividing by it, as torch's own clipping does.
  const at::Tensor scale = (max_norm / (norm + 1e-6)).clamp_max(1.0);
  for (const at::Tensor& grad : grads) grad.mul_(scale.to(grad.device()));
}

}  // namespace pipewright
