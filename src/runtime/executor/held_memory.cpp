#include "runtime/executor/held_memory.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <memory>
#include <utility>

namespace pipewright {

/// Of all operators that this thread runs while something is watched.
struct HeldMemory::Observer {
  static thread_local HeldMemory* memory;
  static thread_local int depth;  // of operators that others call

  static void see(const c10::IValue& value, bool counts) {
    if (value.isTensor()) {
      memory->see(value.toTensor(), counts);
    } else if (value.isList()) {
      for (const c10::IValue& each : value.toListRef()) see(each, counts);
    }
  }

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& call) {
    // What the outermost takes was there before it. Those within take, among others, what the outer one has
    // just made, which nobody has told of.
    if (depth++ == 0) {
      for (const c10::IValue& input : call.inputs()) see(input, false);
    }
    return nullptr;
  }

  static void end(const at::RecordFunction& call, at::ObserverContext* /*context*/) {
    --depth;
    for (const c10::IValue& output : call.outputs()) see(output, true);
  }
};

thread_local HeldMemory* HeldMemory::Observer::memory = nullptr;
thread_local int HeldMemory::Observer::depth = 0;

HeldMemory::Watch::Watch(HeldMemory* memory) {
  if (!memory) return;
  Observer::memory = memory;
  Observer::depth = 0;
  callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&Observer::begin, &Observer::end)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
}

HeldMemory::Watch::~Watch() {
  if (callback_ != 0) at::removeCallback(callback_);
}

void HeldMemory::see(const at::Tensor& tensor, bool counts) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  const c10::StorageImpl* memory = tensor.storage().unsafeGetStorageImpl();
  if (!known_.contains(memory)) known_.emplace(memory, Known{tensor.storage().getWeakStorageImpl(), counts});
}

void HeldMemory::add(const Values& values) {
  for (const at::Tensor& value : values) see(value, true);
}

void HeldMemory::leave_out(const Values& values) {
  for (const at::Tensor& value : values) {
    if (!value.defined() || !value.has_storage()) continue;
    const std::size_t own = value.is_view() ? 2 : 1;  // a view also holds what it is a view of
    if (value.storage().use_count() > own) continue;
    const auto found = known_.find(value.storage().unsafeGetStorageImpl());
    if (found != known_.end()) found->second.counts = false;
  }
}

std::int64_t HeldMemory::bytes() const {
  std::int64_t sum = 0;
  for (const auto& [address, known] : known_) {
    if (!known.counts) continue;
    if (const auto held = known.memory.lock()) sum += static_cast<std::int64_t>(held->nbytes());
  }
  return sum;
}

HeldMemory* StageMemory::begin(const Values& inputs) {
  std::vector<std::vector<std::int64_t>> sizes;
  sizes.reserve(inputs.size());
  for (const at::Tensor& input : inputs) {
    sizes.push_back(input.defined() ? input.sizes().vec() : std::vector<std::int64_t>{-1});
  }
  if (known_ && sizes == sizes_) return nullptr;
  *this = {};
  sizes_ = std::move(sizes);
  return &held_;
}

double StageMemory::end(Kind kind) {
  constexpr double kMebibyte = 1 << 20;
  if (!known_) after_[kind] = static_cast<double>(held_.bytes()) / kMebibyte;
  if (kind != Kind::F) {
    known_ = true;
    held_ = {};
  }
  return after_[kind];
}

}  // namespace pipewright
