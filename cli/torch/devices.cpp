#include "torch/devices.h"

#include <c10/util/Exception.h>
#include <torch/cuda.h>

#include <optional>
#include <utility>

#include "pipewright/base/error.h"
#include "pipewright/runtime/world.h"

namespace pipewright::cli {
namespace {

/// Any that libtorch knows.
std::optional<at::Device> device_from(const std::string& text) {
  try {
    return at::Device(text);
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

at::Device parsed(const std::string& text) {
  const std::optional<at::Device> device = device_from(text);
  if (device && (device->is_cpu() || device->is_cuda())) return *device;
  throw ArgumentError("--device must be cpu, cuda or cuda:N, not '" + text + "'");
}

int device_count() { return static_cast<int>(torch::cuda::device_count()); }

}  // namespace

void DeviceOptions::add_to(CLI::App& app) {
  app.add_option(
         "--device", device,
         "Where the ranks compute: cpu; cuda, the devices in turn, or one for each process; or cuda:N")
      ->capture_default_str();
}

void DeviceOptions::check() const {
  const at::Device wanted = parsed(device);
  if (wanted.is_cpu()) return;
  if (!torch::cuda::is_available()) throw ArgumentError("--device " + device + ": there is no CUDA device");
  if (wanted.has_index() && wanted.index() >= device_count()) {
    throw ArgumentError("--device " + device + ": there is no such CUDA device; the last one is cuda:" +
                        std::to_string(device_count() - 1));
  }
}

bool DeviceOptions::is_cuda() const { return parsed(device).is_cuda(); }

std::vector<at::Device> DeviceOptions::by_rank(Rank ranks) const {
  const at::Device wanted = parsed(device);
  std::vector<at::Device> all(static_cast<std::size_t>(ranks), wanted);
  if (wanted.is_cpu() || wanted.has_index()) return all;
  const auto told = world_from_environment();
  for (Rank rank = 0; rank < ranks; ++rank) {
    const int turn = told && told->size > 1 ? told->local_rank : rank;
    all[static_cast<std::size_t>(rank)] =
        at::Device(at::kCUDA, static_cast<at::DeviceIndex>(turn % device_count()));
  }
  return all;
}

StageDevices by_stage(std::vector<at::Device> by_rank, Placement placement) {
  return [by_rank = std::move(by_rank), placement = std::move(placement)](Stage stage) {
    return by_rank.at(static_cast<std::size_t>(placement.at(static_cast<std::size_t>(stage))));
  };
}

void bring(Values& values, at::Device device) {
  for (at::Tensor& value : values) value = value.to(device, value.scalar_type(), /*non_blocking=*/true);
}

}  // namespace pipewright::cli
