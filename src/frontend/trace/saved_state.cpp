#include "frontend/trace/saved_state.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <mutex>

namespace pipewright {

SavedState::SavedState(const ModelState& state, const Values& inputs) {
  before_use(at::globalContext().defaultGenerator(at::kCPU));
  const auto add = [&](const at::Tensor& tensor) {
    watch(tensor);
    if (tensor.defined() && tensor.is_cuda())
      before_use(at::globalContext().defaultGenerator(tensor.device()));
  };
  for (const at::Tensor& input : inputs) add(input);
  for (const auto& [name, tensor] : state.parameters) add(tensor);
  for (const auto& [name, tensor] : state.buffers) {
    add(tensor);
    save(tensor);
  }
}

SavedState::~SavedState() {
  const at::NoGradGuard no_grad;
  for (const auto& [storage, each] : storages_) each.first.copy_(each.second);
  for (auto& [generator, before] : generators_) {
    const std::scoped_lock lock(generator.mutex());
    generator.set_state(before);
  }
}

void SavedState::watch(const at::Tensor& tensor) {
  if (tensor.defined() && tensor.has_storage()) watched_.insert(tensor.storage().unsafeGetStorageImpl());
}

void SavedState::before_write(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  if (watched_.contains(tensor.storage().unsafeGetStorageImpl())) save(tensor);
}

void SavedState::save(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return;
  const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  if (storages_.contains(storage)) return;
  const at::NoGradGuard no_grad;
  const at::Tensor bytes =
      at::empty({0}, tensor.options().dtype(at::kByte).requires_grad(false)).set_(tensor.storage());
  storages_[storage] = {bytes, bytes.clone()};
}

void SavedState::before_use(const at::Generator& generator) {
  const auto is_it = [&](const auto& each) { return each.first == generator; };
  if (!generator.defined() || std::ranges::any_of(generators_, is_it)) return;
  at::Generator held = generator;
  const std::scoped_lock lock(held.mutex());
  generators_.emplace_back(held, held.get_state());
}

}  // namespace pipewright
