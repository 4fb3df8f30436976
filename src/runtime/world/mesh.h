#pragma once

#include <vector>

#include "pipewright/base/ids.h"

namespace pipewright {

/// One rank of one replica of the pipeline.
struct Position {
  int replica = 0;
  Rank rank = 0;
};

/// Pipeline ranks × replicas, and the process where each of them runs.
class Mesh {
 public:
  /// `own`: this process, of `size`. `processes`: of each position, all replicas of rank 0 first; empty:
  /// equally many positions, in that order, on each. Throws ArgumentError where they do not fit.
  Mesh(Rank ranks, int replicas, int own, int size, std::vector<int> processes);

  Rank ranks() const { return ranks_; }
  int replicas() const { return replicas_; }
  int own_process() const { return own_; }
  const std::vector<int>& processes() const { return processes_; }
  int process_of(Position position) const;

  /// The positions of this process, and the replicas that these are of; both in ascending order.
  const std::vector<Position>& local() const { return local_; }
  const std::vector<int>& local_replicas() const { return local_replicas_; }

  /// Replicas of this rank in this process.
  std::vector<int> local_replicas_of(Rank rank) const;
  /// Processes with a replica of this rank, that of the first replica first.
  std::vector<int> processes_of(Rank rank) const;

 private:
  Rank ranks_;
  int replicas_;
  int own_;
  std::vector<int> processes_;
  std::vector<Position> local_;
  std::vector<int> local_replicas_;
};

}  // namespace pipewright
