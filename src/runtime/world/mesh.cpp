#include "runtime/world/mesh.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "pipewright/base/error.h"

namespace pipewright {
namespace {

std::string positions_text(Rank ranks, int replicas) {
  return std::to_string(ranks) + " ranks" +
         (replicas == 1 ? "" : " in " + std::to_string(replicas) + " replicas");
}

}  // namespace

Mesh::Mesh(Rank ranks, int replicas, int own, int size, std::vector<int> processes)
    : ranks_(ranks), replicas_(replicas), own_(own), processes_(std::move(processes)) {
  if (replicas < 1) throw ArgumentError("there must be at least 1 replica, not " + std::to_string(replicas));
  const int positions = ranks * replicas;
  if (processes_.empty()) {
    if (positions % size != 0) {
      throw ArgumentError("a schedule of " + positions_text(ranks, replicas) + " does not fit a world of " +
                          std::to_string(size) + " processes: start " + std::to_string(positions) +
                          " processes, or a divisor of that");
    }
    for (int at = 0; at < positions; ++at) processes_.push_back(at / (positions / size));
  }
  if (processes_.size() != static_cast<std::size_t>(positions)) {
    throw ArgumentError("processes are given for " + std::to_string(processes_.size()) +
                        " ranks, the schedule has " + positions_text(ranks, replicas));
  }
  std::set<int> here;
  for (int at = 0; at < positions; ++at) {
    const int process = processes_[static_cast<std::size_t>(at)];
    if (process < 0 || process >= size) {
      throw ArgumentError("there is no process " + std::to_string(process) + " in a world of " +
                          std::to_string(size));
    }
    if (process != own) continue;
    local_.push_back({.replica = at % replicas, .rank = at / replicas});
    here.insert(at % replicas);
  }
  local_replicas_.assign(here.begin(), here.end());
}

int Mesh::process_of(Position position) const {
  const int at = position.rank * replicas_ + position.replica;
  return processes_[static_cast<std::size_t>(at)];
}

std::vector<int> Mesh::local_replicas_of(Rank rank) const {
  std::vector<int> replicas;
  for (const Position& each : local_) {
    if (each.rank == rank) replicas.push_back(each.replica);
  }
  return replicas;
}

std::vector<int> Mesh::processes_of(Rank rank) const {
  std::vector<int> processes;
  for (int replica = 0; replica < replicas_; ++replica) {
    const int process = process_of({replica, rank});
    if (std::ranges::find(processes, process) == processes.end()) processes.push_back(process);
  }
  return processes;
}

}  // namespace pipewright
