#include "frontend/trace/thread_modes.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

namespace pipewright {
namespace {

/// Autocast of the devices that have one here.
std::vector<NodeModes::Autocast> autocast_of_thread() {
  std::vector<NodeModes::Autocast> all;
  for (const at::DeviceType device : {at::kCPU, at::kCUDA}) {
    all.push_back({.device = device,
                   .dtype = at::autocast::get_autocast_dtype(device),
                   .enabled = at::autocast::is_autocast_enabled(device),
                   .cache = at::autocast::is_autocast_cache_enabled()});
  }
  return all;
}

/// How many autocast regions this thread is in; what they have cast is kept until it has left all of them.
int autocast_nesting() {
  at::autocast::increment_nesting();
  return at::autocast::decrement_nesting();
}

}  // namespace

ThreadModes::ThreadModes() : autocast_(autocast_of_thread()), autocast_nesting_(autocast_nesting()) {}

NodeModes ThreadModes::now() const {
  NodeModes modes;
  if (!at::GradMode::is_enabled()) modes.grad = false;
  const std::vector<NodeModes::Autocast> now = autocast_of_thread();
  // A region that changes nothing, which stays the same while others are entered and left inside of it.
  if (autocast_nesting() > autocast_nesting_) modes.autocast.push_back(autocast_.front());
  for (std::size_t at = 0; at < now.size(); ++at) {
    if (!(now[at] == autocast_[at])) modes.autocast.push_back(now[at]);
  }
  return modes;
}

}  // namespace pipewright
