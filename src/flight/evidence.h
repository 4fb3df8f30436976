#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "pipewright/flight/record.h"

namespace pipewright {

/// A rank of a replica or, with rank −1, a process as a whole.
struct Node {
  int process;
  int replica = -1;
  Rank rank = -1;
  friend auto operator<=>(const Node&, const Node&) = default;
};

/// The records of one world, to be asked who has what from whom. They must outlive it.
class Evidence {
 public:
  explicit Evidence(const std::vector<ProcessRecord>& records);

  const std::map<int, const ProcessRecord*>& processes() const { return processes_; }
  const std::map<Node, const RankRecord*>& ranks() const { return ranks_; }
  /// Null where there is none.
  const ProcessRecord* process(int process) const;

  /// `rank 2 of replica 0 (process 5)`, `process 5 (rank 2, 3)`; only `rank 2` where there is one process.
  std::string name(const Node& node) const;

  /// The last action that a rank has begun, bubbles aside; null where there is none.
  const RecordedAction* last(const Node& rank) const;
  /// The actions that a rank has begun and not ended.
  std::vector<const RecordedAction*> unfinished(const Node& rank) const;

  /// Whom a waiting action gets its message from; the rank itself where its stage is the pipeline's end.
  Node sender(const Node& rank, const RecordedAction& waiting) const;
  /// The send of that message, where it was made before the waiting process wrote its record.
  const RecordedAction* sent(const Node& rank, const RecordedAction& waiting) const;

  /// The ranks of other processes that share a stage with this one.
  std::vector<Node> sharers(const Node& rank) const;
  /// Whether a process has begun to unshard the stage as often in this step as the waiting one. The first
  /// of a process's replicas to come to it begins it for all of them.
  bool has_unsharded(int process, const Node& rank, const RecordedAction& waiting) const;

 private:
  using StepOfStage = std::tuple<int, Stage, std::int64_t>;
  /// Of a message: who sends it, from which stage to which, for which microbatch and step.
  using StepOfMessage = std::tuple<Node, Stage, Stage, std::uint32_t, std::int64_t>;

  void index(const Node& node, const RankRecord& rank);
  int unshards(int process, Stage stage, std::int64_t step) const;

  std::map<int, const ProcessRecord*> processes_;
  std::map<Node, const RankRecord*> ranks_;
  std::map<StepOfMessage, const RecordedAction*> sends_;
  /// How often, by the process.
  std::map<StepOfStage, int> unshards_;
  std::size_t replicas_ = 0;
};

/// `4.20 s`, `75 s`
std::string seconds_text(Microseconds time);

/// What an action needs: `activations of stage 1`, `parameters of stage 2`.
std::string need_text(const RecordedAction& action);

}  // namespace pipewright
