#include "runtime/device/device_link.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>

#include <vector>

namespace pipewright {

DeviceLink::DeviceLink(c10::Device from, c10::Device to) : from_(from), to_(to) {
  if (from == to) return;
  if (!from.is_cpu()) leaves_ = new_stream(from);
  if (!to.is_cpu()) arrives_ = new_stream(to);
}

Mark DeviceLink::give(Values& values, Timed timed) {
  if (from_ == to_) return to_.is_cpu() ? nullptr : mark(to_, timed);
  std::vector<c10::Stream> streams;
  if (leaves_) {
    wait_for(*leaves_, current_stream(from_));
    keep_for(values, *leaves_);
    streams.push_back(*leaves_);
  }
  if (arrives_) streams.push_back(*arrives_);
  const c10::MultiStreamGuard guard(streams);
  copy(values);
  return to_.is_cpu() ? nullptr : mark(to_, timed);
}

void DeviceLink::copy(Values& values) const {
  const at::AutoGradMode no_grad(false);
  for (at::Tensor& value : values) {
    if (!value.defined() || value.device() != from_) continue;
    const bool differentiable = value.requires_grad();
    // To the CPU it waits, so that the numbers are there.
    value = value.detach().to(to_, /*non_blocking=*/!to_.is_cpu());
    value.set_requires_grad(differentiable);
  }
}

void DeviceLink::take(const Values& values, const Mark& given) const {
  if (!given) return;
  const c10::Stream current = current_stream(to_);
  given->block(current);
  keep_for(values, current);
}

}  // namespace pipewright
