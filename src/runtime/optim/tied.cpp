#include "runtime/optim/tied.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "pipewright/base/error.h"
#include "pipewright/runtime/boundary.h"

namespace pipewright {
namespace {

/// Where a parameter is, and what it looks like.
struct Place {
  std::set<int> processes;
  std::string text;
};

/// The parameters of all processes.
std::map<std::string, Place> all_places(const std::vector<LocalParameter>& parameters, World* world) {
  std::string own;
  for (const LocalParameter& each : parameters) {
    const Slot whole{.sizes = each.sizes, .dtype = each.tensor.scalar_type()};
    own += each.name + "\n" + to_text(whole) + "\n";
  }
  const std::vector<std::string> lists = world ? world->all_gather(own) : std::vector<std::string>{own};
  std::map<std::string, Place> places;
  for (std::size_t process = 0; process < lists.size(); ++process) {
    std::istringstream lines(lists[process]);
    for (std::string name, text; std::getline(lines, name) && std::getline(lines, text);) {
      Place& place = places.emplace(name, Place{.processes = {}, .text = text}).first->second;
      place.processes.insert(static_cast<int>(process));
    }
  }
  return places;
}

std::int64_t whole_length(const LocalParameter& part) {
  std::int64_t length = 1;
  for (const std::int64_t size : part.sizes) length *= size;
  return length;
}

/// The part's place in the flattened whole.
at::Tensor range_of(const at::Tensor& whole, const LocalParameter& part) {
  return whole.narrow(0, part.offset, part.tensor.numel());
}

}  // namespace

bool TiedParameters::Group::is_whole() const {
  return std::ranges::all_of(
      local, [](const LocalParameter& part) { return part.tensor.numel() == whole_length(part); });
}

TiedParameters::TiedParameters(const PipelineOptions& options,
                               const std::vector<LocalParameter>& parameters) {
  if (options.tied.empty()) return;
  const std::map<std::string, Place> places = all_places(parameters, options.world.get());
  for (const std::vector<std::string>& names : options.tied) {
    Group group{.names = names, .local = {}, .others = {}};
    std::set<int> processes;
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
      processes.insert(place.processes.begin(), place.processes.end());
      std::ranges::copy_if(parameters, std::back_inserter(group.local),
                           [&](const LocalParameter& each) { return each.name == name; });
    }
    if (group.local.empty()) continue;
    if (processes.size() > 1) {
      group.others = std::make_shared<Collective>(*options.world, "tied",
                                                  std::vector<int>(processes.begin(), processes.end()),
                                                  group.local.front().tensor.device(), options.timeout);
    }
    groups_.push_back(std::move(group));
  }
}

void TiedParameters::share_values() const {
  const at::AutoGradMode no_grad(false);
  for (const Group& group : groups_) {
    const LocalParameter& like = group.local.front();
    const at::Tensor whole = at::zeros({whole_length(like)}, like.tensor.options().requires_grad(false));
    for (const LocalParameter& part : group.local) {
      if (group.owns(part) && part.counts) range_of(whole, part).copy_(part.tensor.detach().reshape({-1}));
    }
    if (group.others) {
      group.others->wait(group.others->all_reduce(whole, "sharing of " + group.names.front()));
    }
    for (const LocalParameter& part : group.local) {
      part.tensor.copy_(range_of(whole, part).view(part.tensor.sizes()));
    }
  }
}

void TiedParameters::before_step() const {
  for (const Group& group : groups_) {
    for (const LocalParameter& part : group.local) {
      if (!group.owns(part)) part.tensor.mutable_grad().reset();
    }
  }
}

/// Of this process's members: flat where they are parts of a whole, else as they are, which may be
/// sparse. Undefined where there are none.
at::Tensor TiedParameters::Group::sum_of_gradients() const {
  at::Tensor sum;
  for (const LocalParameter& part : local) {
    at::Tensor grad = part.tensor.grad();
    if (!grad.defined() || !part.counts) continue;
    if (!is_whole()) {
      const at::Tensor whole = at::zeros({whole_length(part)}, grad.options());
      range_of(whole, part).copy_(grad.reshape({-1}));
      grad = whole;
    }
    sum = sum.defined() ? sum + grad.to(sum.device()) : grad;
  }
  return sum;
}

void TiedParameters::after_step() const {
  const at::AutoGradMode no_grad(false);
  for (const Group& group : groups_) {
    at::Tensor sum = group.sum_of_gradients();
    if (group.others) {
      const LocalParameter& like = group.local.front();
      const bool here = sum.defined();
      const at::Tensor grad =
          here ? sum.to_dense().reshape({-1})
               : at::zeros({whole_length(like)}, like.tensor.options().requires_grad(false));
      // With a count of those that have a gradient.
      const at::Tensor all = at::cat({grad, at::full({1}, here ? 1 : 0, grad.options())});
      group.others->wait(group.others->all_reduce(all, "sum of the gradients of " + group.names.front()));
      const std::int64_t length = whole_length(like);
      sum = all[length].item<double>() == 0 ? at::Tensor() : all.narrow(0, 0, length);
    }
    if (!sum.defined()) continue;
    for (const LocalParameter& part : group.local) {
      const at::Tensor grad =
          sum.dim() == 1 && !sum.is_sparse() ? range_of(sum, part).view(part.tensor.sizes()) : sum;
      part.tensor.mutable_grad() = grad.to(part.tensor.device(), /*non_blocking=*/false, /*copy=*/true);
    }
  }
}

void TiedParameters::abort() const {
  for (const Group& group : groups_) {
    if (group.others) group.others->abort();
  }
}

bool TiedParameters::is_copy(const std::string& name) const {
  return std::ranges::any_of(groups_, [&](const Group& group) {
    const auto found = std::ranges::find(group.names, name);
    return found != group.names.begin() && found != group.names.end();
  });
}

}  // namespace pipewright
