#include "runtime/optim/tied.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <map>
#include <ranges>
#include <sstream>

#include "pipewright/base/error.h"
#include "pipewright/runtime/boundary.h"
#include "runtime/world/world_impl.h"

namespace pipewright {
namespace {

/// Where a parameter is, and what it looks like.
struct Place {
  int process;
  std::string text;
};

/// The parameters of all processes. A name that several have counts as the first one's.
std::map<std::string, Place> all_places(const NamedTensors& parameters, World* world) {
  std::string own;
  for (const auto& [name, parameter] : parameters) own += name + "\n" + to_text(parameter) + "\n";
  const std::vector<std::string> lists = world ? world->all_gather(own) : std::vector<std::string>{own};
  std::map<std::string, Place> places;
  for (std::size_t process = 0; process < lists.size(); ++process) {
    std::istringstream lines(lists[process]);
    for (std::string name, text; std::getline(lines, name) && std::getline(lines, text);) {
      places.emplace(name, Place{static_cast<int>(process), text});
    }
  }
  return places;
}

at::Tensor local_sum(const std::vector<at::Tensor>& parameters) {
  at::Tensor sum;
  for (const at::Tensor& each : parameters) {
    const at::Tensor& grad = each.grad();
    if (grad.defined()) sum = sum.defined() ? sum + grad.to(sum.device()) : grad;
  }
  return sum;
}

/// The sum over the processes of a group; undefined where none of them has anything.
at::Tensor sum_over(c10d::Backend& group, const at::Tensor& own, const at::Tensor& like) {
  const at::Tensor grad = own.defined() ? own.to_dense() : at::zeros_like(like);
  // With a count of those that have a gradient.
  std::vector<at::Tensor> all = {
      at::cat({grad.reshape({-1}), at::full({1}, own.defined() ? 1 : 0, grad.options())})};
  group.allreduce(all)->wait();
  const auto count = like.numel();
  if (all[0][count].item<double>() == 0) return {};
  return all[0].narrow(0, 0, count).clone().view(like.sizes());
}

}  // namespace

auto TiedParameters::Group::copies() const { return local | std::views::drop(owns ? 1 : 0); }

TiedParameters::TiedParameters(const std::vector<std::vector<std::string>>& groups,
                               const NamedTensors& parameters, World* world)
    : world_(world) {
  if (groups.empty()) return;
  const std::map<std::string, Place> places = all_places(parameters, world);
  for (const std::vector<std::string>& names : groups) {
    Group group;
    const Place* owner = nullptr;
    for (const std::string& name : names) {
      const auto found = places.find(name);
      if (found == places.end()) throw ArgumentError("tied parameter '" + name + "' is on no stage");
      const Place& place = found->second;
      if (!owner) owner = &place;
      if (owner->text != place.text) {
        throw ArgumentError("tied parameters differ in shape: '" + names.front() + "' is " + owner->text +
                            ", '" + name + "' is " + place.text);
      }
      group.processes.push_back(place.process);
      const auto local = std::ranges::find(parameters, name, [](const auto& named) { return named.first; });
      if (local != parameters.end()) group.local.push_back(local->second);
      if (owner == &place) group.owns = local != parameters.end();
    }
    if (group.local.empty()) continue;
    std::ranges::sort(group.processes);
    group.processes.erase(std::ranges::unique(group.processes).begin(), group.processes.end());
    group.owner =
        static_cast<int>(std::ranges::find(group.processes, owner->process) - group.processes.begin());
    groups_.push_back(std::move(group));
  }
}

void TiedParameters::share_values() const {
  const at::AutoGradMode no_grad(false);
  for (const Group& group : groups_) {
    const at::Tensor& first = group.local.front();
    if (group.processes.size() > 1) {
      std::vector<at::Tensor> value = {first.detach().contiguous()};
      c10d::BroadcastOptions options;
      options.rootRank = group.owner;
      world_->impl().group(group.processes).broadcast(value, options)->wait();
      if (!group.owns) first.copy_(value[0]);
    }
    for (const at::Tensor& copy : group.local | std::views::drop(1)) copy.copy_(first);
  }
}

void TiedParameters::before_step() const {
  for (const Group& group : groups_) {
    for (const at::Tensor& copy : group.copies()) copy.mutable_grad().reset();
  }
}

void TiedParameters::after_step() const {
  const at::AutoGradMode no_grad(false);
  for (const Group& group : groups_) {
    at::Tensor sum = local_sum(group.local);
    if (group.processes.size() > 1) {
      sum = sum_over(world_->impl().group(group.processes), sum, group.local.front());
    }
    if (!sum.defined()) continue;
    group.local.front().mutable_grad() = sum;
    for (const at::Tensor& copy : group.local | std::views::drop(1)) {
      copy.mutable_grad() = sum.to(copy.device(), /*non_blocking=*/false, /*copy=*/true);
    }
  }
}

bool TiedParameters::is_copy(const at::Tensor& parameter) const {
  return std::ranges::any_of(groups_, [&](const Group& group) {
    return std::ranges::any_of(group.copies(),
                               [&](const at::Tensor& copy) { return copy.is_same(parameter); });
  });
}

}  // namespace pipewright
