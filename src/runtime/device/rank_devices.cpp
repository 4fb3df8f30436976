#include "runtime/device/rank_devices.h"

#include <torch/nn/module.h>

#include <optional>

#include "runtime/device/streams.h"

namespace pipewright {
namespace {

/// Where a stage's module is; nothing for one that holds nothing.
std::optional<c10::Device> device_of(const StageModel& stage) {
  if (!stage.module) return std::nullopt;
  for (const at::Tensor& tensor : stage.module->parameters()) return tensor.device();
  for (const at::Tensor& tensor : stage.module->buffers()) return tensor.device();
  return std::nullopt;
}

c10::Device with_number(c10::Device device) {
  return device.is_cpu() || device.has_index() ? device : current_stream(device).device();
}

}  // namespace

void RankDevices::add(int replica, const std::map<Stage, StageModel>& stages, const Placement& placement,
                      const std::vector<c10::Device>& wanted) {
  std::map<Rank, std::optional<c10::Device>> found;
  std::optional<c10::Device> first;
  for (const auto& [stage, model] : stages) {
    const Rank rank = placement[static_cast<std::size_t>(stage)];
    std::optional<c10::Device>& device = found[rank];
    if (!device) device = device_of(model);
    if (!device && !wanted.empty()) device = wanted[static_cast<std::size_t>(rank)];
    if (!first) first = device;
  }
  c10::Device before = first.value_or(c10::kCPU);
  for (const auto& [rank, device] : found) {
    before = with_number(device.value_or(before));
    known.emplace(std::pair(replica, rank), before);
  }
}

}  // namespace pipewright
