#include "runtime/collective/data_parallel.h"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "pipewright/base/error.h"
#include "runtime/transport/channel.h"

namespace pipewright {
namespace {

bool has_action(const Schedule& plan, Kind kind) {
  return std::ranges::any_of(plan.ranks, [kind](const std::vector<Action>& actions) {
    return std::ranges::any_of(actions, [kind](Action action) { return action.kind == kind; });
  });
}

/// A tensor of two stages would be summed at the first one's REDUCE_GRAD, while the second still adds to it.
void check_apart(const StageModels& models) {
  std::unordered_map<const void*, Stage> owners;
  for (const auto& [stage, model] : models) {
    if (!model.module) continue;
    for (const at::Tensor& parameter : model.module->parameters()) {
      const auto [owner, is_new] = owners.emplace(parameter.unsafeGetTensorImpl(), stage);
      if (is_new || owner->second == stage) continue;
      throw ArgumentError("stage " + std::to_string(owner->second) + " and stage " + std::to_string(stage) +
                          " share a parameter: with data parallelism, give each its own and tie them");
    }
  }
}

/// Where the parameters of a rank's stages are.
c10::Device device_of(Rank rank, const Placement& placement, const ReplicaModels& models) {
  for (const auto& [replica, stages] : models) {
    for (const auto& [stage, model] : stages) {
      if (!model.module || placement[static_cast<std::size_t>(stage)] != rank) continue;
      const std::vector<at::Tensor> parameters = model.module->parameters();
      if (!parameters.empty()) return parameters.front().device();
    }
  }
  return at::kCPU;
}

}  // namespace

DataParallel::DataParallel(const Mesh& mesh, const Schedule& plan, ReplicaModels& models,
                           const PipelineOptions& options)
    : mesh_(mesh), placement_(plan.placement) {
  if (mesh.replicas() == 1) return;
  const bool trains = has_action(plan, Kind::B) || has_action(plan, Kind::W);
  if (trains && !has_action(plan, Kind::ReduceGrad)) {
    throw ArgumentError("data parallelism needs a plan with REDUCE_GRAD actions");
  }
  if (options.sharded && !has_action(plan, Kind::Unshard)) {
    throw ArgumentError("sharded stages need a plan with UNSHARD and RESHARD actions");
  }
  for (const auto& [replica, stages] : models) check_apart(stages);

  for (Rank rank = 0; rank < mesh.ranks(); ++rank) {
    const std::vector<int> processes = mesh.processes_of(rank);
    if (std::ranges::find(processes, mesh.own_process()) == processes.end()) continue;
    ReplicaLinks& links = links_[rank];
    if (processes.size() == 1) continue;
    const std::string name = " of rank " + std::to_string(rank);
    const auto make = [&](const std::string& what) {
      return std::make_unique<Collective>(*options.world, what + name, processes,
                                          device_of(rank, placement_, models), options.timeout);
    };
    links.gathers = make("parameters");
    links.sums = make("gradients");
  }
  for (Stage stage = 0; stage < plan.stage_count(); ++stage) {
    const Rank rank = plan.placement[static_cast<std::size_t>(stage)];
    StageMembers members{.stage = stage, .models = {}};
    for (const int replica : mesh.local_replicas_of(rank)) {
      members.models.push_back(&models.at(replica).at(stage));
    }
    if (members.models.empty()) continue;
    ReplicaLinks& links = links_.at(rank);
    stages_[stage] = options.sharded && links.gathers
                         ? make_sharded_stage(members, links, options.reduce_dtype)
                         : make_replicated_stage(members, links, options.reduce_dtype);
  }
}

StageReplicas* DataParallel::stage(Stage stage) {
  const auto found = stages_.find(stage);
  return found == stages_.end() ? nullptr : found->second.get();
}

std::size_t DataParallel::member(Position position) const {
  const std::vector<int> replicas = mesh_.local_replicas_of(position.rank);
  return static_cast<std::size_t>(std::ranges::find(replicas, position.replica) - replicas.begin());
}

void DataParallel::begin_step() {
  for (const auto& [stage, replicas] : stages_) replicas->begin_step();
}

void DataParallel::end_step(Failure& failure) {
  for (const auto& [stage, replicas] : stages_) {
    try {
      replicas->end_step();
    } catch (const Stopped&) {
      return;  // another process's failure, reported there
    } catch (...) {
      const Rank rank = placement_[static_cast<std::size_t>(stage)];
      failure.report({mesh_.local_replicas_of(rank).front(), rank}, make_action(stage, Kind::ReduceGrad),
                     std::current_exception());
      return;
    }
  }
}

void DataParallel::drop_step() {
  for (const auto& [stage, replicas] : stages_) replicas->drop_step();
}

void DataParallel::abort() {
  for (const auto& [rank, links] : links_) {
    if (links.gathers) links.gathers->abort();
    if (links.sums) links.sums->abort();
  }
}

}  // namespace pipewright
