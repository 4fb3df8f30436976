#include "runtime/transport/carriers.h"

#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/runtime/errors.h"
#include "runtime/world/network.h"
#include "runtime/world/world_impl.h"

namespace pipewright {
namespace {

/// Replica and rank of those that compute on CUDA devices, in all processes.
std::set<std::pair<int, Rank>> ranks_on_cuda(World& world, const Mesh& mesh, const RankDevices& devices) {
  std::string own;
  for (const Position each : mesh.local()) {
    if (!devices.at(each.replica, each.rank).is_cuda()) continue;
    own += std::to_string(each.replica) + " " + std::to_string(each.rank) + "\n";
  }
  std::set<std::pair<int, Rank>> all;
  for (const std::string& text : world.all_gather(own)) {
    std::istringstream numbers(text);
    int replica = 0;
    for (Rank rank = 0; numbers >> replica >> rank;) all.emplace(replica, rank);
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

struct Silence : c10::WarningHandler {
  void process(const c10::Warning& /*warning*/) override {}
};

/// Connecting takes a moment, during which both ends wait for each other.
void connect(c10d::Backend& carrier, c10::Device device) {
  const c10::OptionalDeviceGuard guard(device);
  Silence silence;  // about a communicator for two processes alone, which is what is wanted
  const c10::WarningUtils::WarningHandlerGuard no_warnings(&silence);
  std::vector<at::Tensor> tensors = {at::zeros({1}, device)};
  const bool sends = carrier.getRank() == 0;
  (sends ? carrier.send(tensors, 1, 0) : carrier.recv(tensors, 0, 0))->wait();
}

}  // namespace

Carriers open_carriers(World& world, const Mesh& mesh, const Schedule& plan, const RankDevices& devices) {
  Carriers carriers;
  if (!world.impl().uses_nccl()) return carriers;
  const auto on_cuda = ranks_on_cuda(world, mesh, devices);
  std::map<std::pair<int, int>, int> count;  // of the channels from one process to another
  for (int replica = 0; replica < mesh.replicas(); ++replica) {
    for (const auto [from, to] : edges_of(plan)) {
      const Rank from_rank = plan.placement[static_cast<std::size_t>(from)];
      const Rank to_rank = plan.placement[static_cast<std::size_t>(to)];
      const int sender = mesh.process_of({replica, from_rank});
      const int receiver = mesh.process_of({replica, to_rank});
      if (sender == receiver || !on_cuda.contains({replica, from_rank}) ||
          !on_cuda.contains({replica, to_rank})) {
        continue;
      }
      const int number = count[{sender, receiver}]++;
      const int own = mesh.own_process();
      if (own != sender && own != receiver) continue;
      Carrier carrier =
          world.impl().group("channel/" + std::to_string(number), {sender, receiver}, at::kCUDA);
      try {
        connect(*carrier, devices.at(replica, own == sender ? from_rank : to_rank));
      } catch (const std::exception& why) {
        throw ConnectionError("processes " + std::to_string(sender) + " and " + std::to_string(receiver) +
                              " cannot connect their devices, for what stage " + std::to_string(from) +
                              " sends to stage " + std::to_string(to) + ": " + connection_reason(why.what()));
      }
      carriers[{replica, from, to}] = std::move(carrier);
    }
  }
  return carriers;
}

}  // namespace pipewright
