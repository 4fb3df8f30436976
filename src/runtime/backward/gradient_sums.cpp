#include "runtime/backward/gradient_sums.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <algorithm>
#include <array>
#include <functional>
#include <mutex>
#include <optional>
#include <typeinfo>
#include <utility>

#include "runtime/backward/node_traits.h"
#include "runtime/device/streams.h"

namespace pipewright {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using torch::autograd::generated::AddmmBackward0;
using torch::autograd::generated::MmBackward0;
using torch::autograd::generated::TBackward0;

/// An operator on larger ones costs more than its launch; and they would be held until `finish`.
constexpr std::int64_t kSmall = std::int64_t{1} << 16;

/// Held by whoever adds to a parameter's gradient: ranks that share one are several threads.
std::mutex& mutex_of(const at::Tensor& parameter) {
  static std::array<std::mutex, 1024> all;
  return all[std::hash<const void*>()(parameter.unsafeGetTensorImpl()) / alignof(c10::TensorImpl) %
             all.size()];
}

/// AccumulateGrad adds where it was made: sums of several streams are those of one.
bool is_elsewhere(Node& node) {
  const std::optional<c10::Stream> stream = node.stream();
  return stream && *stream != current_stream(stream->device());
}

/// The parameter where a gradient ends, if AccumulateGrad would do nothing but add it.
std::optional<at::Tensor> parameter_at(Node& node) {
  if (typeid(node) != typeid(AccumulateGrad) || has_hooks(node) || is_elsewhere(node)) return std::nullopt;
  return static_cast<AccumulateGrad&>(node).variable;
}

/// Whether there is something to add to in place. REQUIRES: the parameter's mutex is held.
bool has_sum(const at::Tensor& parameter) {
  const at::Tensor& sum = parameter.grad();
  return sum.defined() && sum.layout() == c10::kStrided && sum.is_non_overlapping_and_dense() &&
         sum.scalar_type() == parameter.scalar_type();
}

/// A matrix among the parameters, and whether the product's gradient is that of its transpose.
struct Weight {
  at::Tensor parameter;
  bool transposed;
};

std::optional<Weight> weight_behind(const Edge& edge) {
  if (!edge.is_valid()) return std::nullopt;
  Node* node = edge.function.get();
  const bool transposed = typeid(*node) == typeid(TBackward0) && !has_hooks(*node);
  if (transposed) node = node->next_edge(0).function.get();
  if (!node) return std::nullopt;
  std::optional<at::Tensor> parameter = parameter_at(*node);
  // libtorch takes a sum that is a vector for a bias on CUDA devices, and finds no algorithm for it.
  if (!parameter || parameter->dim() != 2 || parameter->size(0) == 1 || parameter->size(1) == 1) {
    return std::nullopt;
  }
  return Weight{std::move(*parameter), transposed};
}

bool is_matrix_like(const at::Tensor& matrix, const at::Tensor& parameter) {
  return matrix.defined() && matrix.layout() == c10::kStrided && matrix.dim() == 2 &&
         matrix.scalar_type() == parameter.scalar_type() && matrix.device() == parameter.device();
}

/// One of the two gradients of left · right, where that of their product is `grad`.
struct Product {
  std::size_t edge;
  SavedVariable* other;  // the factor that this is not the gradient of
  bool of_left;
  at::Scalar scale;
};

/// Adds it to the parameter at its end; false where there is none.
bool add_product(Node& node, const Product& product, const at::Tensor& grad) {
  const std::optional<Weight> weight = weight_behind(node.next_edge(product.edge));
  if (!weight || !is_matrix_like(grad, weight->parameter)) return false;
  const at::Tensor other = product.other->unpack();
  if (!is_matrix_like(other, weight->parameter) || other.is_complex()) return false;
  const std::lock_guard lock(mutex_of(weight->parameter));
  if (!has_sum(weight->parameter)) return false;
  const at::Tensor& sum = weight->parameter.mutable_grad();
  const at::Tensor target = weight->transposed ? sum.t() : sum;
  if (product.of_left) {
    target.addmm_(grad, other.t(), 1, product.scale);
  } else {
    target.addmm_(other.t(), grad, 1, product.scale);
  }
  return true;
}

}  // namespace

std::vector<std::size_t> GradientSums::add_products(Node& node, const variable_list& grads) {
  std::vector<Product> products;
  if (typeid(node) == typeid(AddmmBackward0)) {
    auto& own = static_cast<AddmmBackward0&>(node);
    products = {{1, &own.mat2_, true, own.alpha}, {2, &own.mat1_, false, own.alpha}};
  } else if (typeid(node) == typeid(MmBackward0)) {
    auto& own = static_cast<MmBackward0&>(node);
    products = {{0, &own.mat2_, true, 1}, {1, &own.self_, false, 1}};
  }
  if (products.empty() || has_hooks(node) || is_elsewhere(node) || !grads.front().defined()) return {};
  std::vector<std::size_t> done;
  if (typeid(node) == typeid(AddmmBackward0) &&
      add_rows(node, 0, grads.front(), static_cast<AddmmBackward0&>(node).beta)) {
    done.push_back(0);
  }
  for (const Product& product : products) {
    if (add_product(node, product, grads.front())) done.push_back(product.edge);
  }
  return done;
}

bool GradientSums::add_rows(Node& node, std::size_t edge, const at::Tensor& grad, const at::Scalar& scale) {
  const Edge& to = node.next_edge(edge);
  const std::optional<at::Tensor> bias = to.is_valid() ? parameter_at(*to.function) : std::nullopt;
  if (!bias || bias->dim() != 1 || !is_matrix_like(grad, *bias) || bias->size(0) != grad.size(1))
    return false;
  // There, such a product would sum in the same few bits.
  if (grad.is_cpu() && at::isReducedFloatingType(grad.scalar_type())) return false;
  const std::lock_guard lock(mutex_of(*bias));
  if (!has_sum(*bias)) return false;
  if (!ones_.defined() || ones_.size(0) != grad.size(0) || ones_.dtype() != grad.dtype() ||
      ones_.device() != grad.device()) {
    ones_ = at::ones({grad.size(0)}, grad.options());
  }
  bias->mutable_grad().addmv_(grad.t(), ones_, 1, scale);
  return true;
}

bool GradientSums::takes(Node& node, const variable_list& grads) {
  if (!node.next_edges().empty() || !grads.front().defined()) return false;
  std::optional<at::Tensor> parameter = parameter_at(node);
  if (!parameter || parameter->numel() > kSmall) return false;
  const at::Tensor& grad = grads.front();
  if (grad.layout() != c10::kStrided || grad.scalar_type() != parameter->scalar_type()) return false;
  {
    const std::lock_guard lock(mutex_of(*parameter));
    if (!has_sum(*parameter)) return false;
  }
  parameters_.push_back(std::move(*parameter));
  grads_.push_back(grad);
  return true;
}

void GradientSums::finish() {
  if (grads_.empty()) return;
  std::vector<std::mutex*> mutexes;
  mutexes.reserve(parameters_.size());
  for (const at::Tensor& parameter : parameters_) mutexes.push_back(&mutex_of(parameter));
  // In the same order everywhere, and each once.
  std::ranges::sort(mutexes, std::less<>());
  mutexes.erase(std::unique(mutexes.begin(), mutexes.end()), mutexes.end());
  std::vector<std::unique_lock<std::mutex>> locks;
  locks.reserve(mutexes.size());
  for (std::mutex* mutex : mutexes) locks.emplace_back(*mutex);
  std::vector<at::Tensor> sums;
  sums.reserve(parameters_.size());
  for (const at::Tensor& parameter : parameters_) sums.push_back(parameter.mutable_grad());
  at::_foreach_add_(sums, grads_);
  parameters_.clear();
  grads_.clear();
}

std::unique_lock<std::mutex> GradientSums::lock(Node& node) {
  if (typeid(node) != typeid(AccumulateGrad) || has_hooks(node)) return {};
  return std::unique_lock(mutex_of(static_cast<AccumulateGrad&>(node).variable));
}

}  // namespace pipewright
