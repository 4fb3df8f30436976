#include "runtime/collective/stage_parameters.h"

#include <ATen/core/grad_mode.h>

#include <unordered_set>
#include <utility>

#include "pipewright/base/error.h"
#include "pipewright/runtime/boundary.h"
#include "runtime/optim/parameters.h"

namespace pipewright {
namespace {

/// In elements: 64 bytes of the narrowest numbers in use.
constexpr std::int64_t kAlignment = 64;

}  // namespace

StageParameters::StageParameters(const StageMembers& members) {
  for (const StageModel* model : members.models) {
    std::vector<at::Tensor>& tensors = members_.emplace_back();
    if (!model->module) continue;
    std::unordered_set<const void*> seen;
    for (const auto& item : model->module->named_parameters()) {
      if (!seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
      tensors.push_back(item.value());
      if (members_.size() == 1) names_.push_back(global_name(members.stage, *model, item.key()));
    }
  }
  const auto alike = [](const at::Tensor& a, const at::Tensor& b) {
    return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && a.device() == b.device() &&
           a.requires_grad() == b.requires_grad();
  };
  for (const std::vector<at::Tensor>& tensors : members_) {
    bool same = tensors.size() == names_.size();
    for (std::size_t at = 0; same && at < names_.size(); ++at) same = alike(tensors[at], first(at));
    if (same) continue;
    throw ArgumentError("the replicas of stage " + std::to_string(members.stage) +
                        " are not alike: its factory must build the same parameters, on the same device, "
                        "each time it is called");
  }
}

void StageParameters::share(std::size_t at, const at::Tensor& values) const {
  for (const std::vector<at::Tensor>& tensors : members_) {
    tensors[at].set_data(values);
  }
}

void StageParameters::drop_gradients() const {
  for (const std::vector<at::Tensor>& tensors : members_) {
    for (const at::Tensor& parameter : tensors) parameter.mutable_grad().reset();
  }
}

bool StageParameters::take_gradients(std::size_t at, const at::Tensor& out) const {
  bool found = false;
  for (const std::vector<at::Tensor>& tensors : members_) {
    at::Tensor grad = std::exchange(tensors[at].mutable_grad(), {});
    if (!grad.defined()) continue;
    if (grad.is_sparse()) grad = grad.to_dense();
    grad = grad.reshape({-1});
    if (found) {
      out.add_(grad);
    } else {
      out.copy_(grad);
    }
    found = true;
  }
  if (!found) out.zero_();
  return found;
}

void share_buffers(const StageMembers& members, ReplicaLinks& links) {
  const at::AutoGradMode no_grad(false);
  StageModel& first = *members.models.front();
  if (!first.module) return;
  const auto buffers = first.module->named_buffers();
  for (const auto& item : buffers) {
    if (links.sums) {
      const at::Tensor values = item.value().contiguous();
      links.sums->wait(links.sums->broadcast(values, "sharing of buffer " + item.key()));
      item.value().copy_(values);
    }
    for (StageModel* model : members.models) {
      if (model != &first) model->module->named_buffers()[item.key()].copy_(item.value());
    }
  }
}

std::int64_t FlatLayout::add(const at::Tensor& tensor) {
  const std::int64_t offset = (length_ + kAlignment - 1) / kAlignment * kAlignment;
  length_ = offset + tensor.numel();
  return offset;
}

}  // namespace pipewright
