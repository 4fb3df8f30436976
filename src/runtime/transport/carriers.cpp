#include "runtime/transport/carriers.h"

#include <ATen/ops/zeros.h>

#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "runtime/world/nccl.h"
#include "runtime/world/world_impl.h"

namespace pipewright {
namespace {

/// What NCCL knows the devices of all ranks by, which are of any process, by replica and rank.
std::map<std::pair<int, Rank>, std::string> devices_of_ranks(World& world, const Mesh& mesh,
                                                             const RankDevices& devices) {
  std::string own;
  for (const Position each : mesh.local()) {
    own += std::to_string(each.replica) + " " + std::to_string(each.rank) + " ";
    own += nccl_name(devices.at(each.replica, each.rank)) + "\n";
  }
  std::map<std::pair<int, Rank>, std::string> all;
  for (const std::string& text : world.all_gather(own)) {
    std::istringstream lines(text);
    int replica = 0;
    Rank rank = 0;
    for (std::string name; lines >> replica >> rank && lines.get() && std::getline(lines, name);) {
      all[{replica, rank}] = name;
    }
  }
  return all;
}

/// Between which stages messages go, both ways; the same list in all processes.
std::vector<Skip> edges_of(const Schedule& plan) {
  std::vector<Skip> edges;
  for (Stage stage = 0; stage + 1 < plan.stage_count(); ++stage) edges.push_back({stage, stage + 1});
  edges.insert(edges.end(), plan.skips.begin(), plan.skips.end());
  for (std::size_t at = 0, all = edges.size(); at < all; ++at)
    edges.push_back({edges[at].to, edges[at].from});
  return edges;
}

}  // namespace

Carrier open_carrier(World& world, const std::string& name, int sender, int receiver, c10::Device device) {
  return world.impl().group(name, {sender, receiver}, device, [device](c10d::Backend& carrier) {
    std::vector<at::Tensor> tensors = {at::zeros({1}, device)};
    return carrier.getRank() == 0 ? carrier.send(tensors, 1, 0) : carrier.recv(tensors, 0, 0);
  });
}

Carriers open_carriers(World& world, const Mesh& mesh, const Schedule& plan, const RankDevices& devices) {
  Carriers carriers;
  const auto names = devices_of_ranks(world, mesh, devices);
  std::map<std::pair<int, int>, int> count;  // of the channels from one process to another
  for (int replica = 0; replica < mesh.replicas(); ++replica) {
    for (const auto [from, to] : edges_of(plan)) {
      const Rank from_rank = plan.placement[static_cast<std::size_t>(from)];
      const Rank to_rank = plan.placement[static_cast<std::size_t>(to)];
      const int sender = mesh.process_of({replica, from_rank});
      const int receiver = mesh.process_of({replica, to_rank});
      if (sender == receiver) continue;
      const std::string& from_device = names.at({replica, from_rank});
      const std::string& to_device = names.at({replica, to_rank});
      if (from_device.empty() || to_device.empty() || from_device == to_device) continue;
      const int number = count[{sender, receiver}]++;
      const int own = mesh.own_process();
      if (own != sender && own != receiver) continue;
      const c10::Device device = devices.at(replica, own == sender ? from_rank : to_rank);
      carriers[{replica, from, to}] =
          open_carrier(world, "channel " + std::to_string(number), sender, receiver, device);
    }
  }
  return carriers;
}

}  // namespace pipewright
