#include "runtime/world/process_groups.h"

#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/device/streams.h"
#include "runtime/world/nccl.h"
#include "runtime/world/network.h"

namespace pipewright {
namespace {

/// Whether each process of a group brings a device of its own that NCCL can use, as it demands.
bool have_devices_each(c10d::Store& store, int rank, int size, c10::Device device) {
  const auto key = [](int of) { return "device/" + std::to_string(of); };
  const std::string own = nccl_name(device);
  store.set(key(rank), std::vector<std::uint8_t>(own.begin(), own.end()));
  std::set<std::string> names = {""};
  bool distinct = true;
  for (int each = 0; each < size; ++each) {
    const std::vector<std::uint8_t> name = store.get(key(each));
    distinct &= names.emplace(name.begin(), name.end()).second;
  }
  return distinct;
}

struct Silence : c10::WarningHandler {
  void process(const c10::Warning& /*warning*/) override {}
};

}  // namespace

ProcessGroup make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                             const WorldOptions& options) {
  auto settings = c10d::ProcessGroupGloo::Options::create(options.timeout);
  settings->devices.push_back(
      c10d::ProcessGroupGloo::createDeviceForHostname(address_towards(options.address, options.port)));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, settings);
}

ProcessGroup make_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, c10::Device device,
                        const WorldOptions& options) {
  return have_devices_each(*store, rank, size, device) ? make_nccl_group(store, rank, size, options.timeout)
                                                       : make_gloo_group(store, rank, size, options);
}

c10::intrusive_ptr<c10::ivalue::Future> connect(const ProcessGroup& the_group, c10::Device device,
                                                const FirstOperation& first) {
  auto connected = c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get());
  std::thread([=, group = the_group]() mutable {
    try {
      const c10::OptionalDeviceGuard guard(device);
      Silence silence;  // about a communicator for two processes alone, which is what is wanted for channels
      const c10::WarningUtils::WarningHandlerGuard no_warnings(&silence);
      first(*group)->wait();
      if (!device.is_cpu()) wait_until_done(device);
      group.reset();  // before anybody goes on: this thread must not be the one that destroys it
    } catch (...) {
      connected->setError(std::current_exception());
      return;
    }
    connected->markCompleted();
  }).detach();
  return connected;
}

std::vector<std::jthread> abort_nccl(const std::vector<ProcessGroup>& groups) {
  // At once: what one of them does at its end waits for the device, which may wait for the end of another.
  std::vector<std::jthread> aborts;
  for (const ProcessGroup& group : groups) {
    if (group->getBackendName() != "nccl") continue;
    aborts.emplace_back([group] {
      try {
        group->abort();
      } catch (const std::exception&) {
        return;  // it is over all the same
      }
    });
  }
  return aborts;
}

void abandon(ProcessGroup group) {
  static std::mutex mutex;
  static auto* const abandoned = new std::vector<ProcessGroup>;
  const std::lock_guard lock(mutex);
  abandoned->push_back(std::move(group));
}

}  // namespace pipewright
