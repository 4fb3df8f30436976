#include "flight/evidence.h"

#include <algorithm>
#include <iomanip>
#include <ranges>
#include <sstream>

namespace pipewright {

std::string seconds_text(Microseconds time) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(time < 10'000'000 ? 2 : 0)
      << static_cast<double>(std::max<Microseconds>(0, time)) / 1e6 << " s";
  return out.str();
}

std::string need_text(const RecordedAction& action) {
  if (action.need == Need::Parameters) return "parameters of stage " + std::to_string(action.action.stage);
  return std::string(action.action.kind == Kind::F ? "activations" : "gradients") + " of stage " +
         std::to_string(action.source());
}

Evidence::Evidence(const std::vector<ProcessRecord>& records) {
  for (const ProcessRecord& record : records) {
    processes_.emplace(record.process, &record);
    replicas_ = std::max(replicas_, record.process_of.size());
    for (const RankRecord& rank : record.ranks) index({record.process, rank.replica, rank.rank}, rank);
  }
}

void Evidence::index(const Node& node, const RankRecord& rank) {
  ranks_[node] = &rank;
  std::map<StepOfStage, int> unshards;
  for (const RecordedAction& each : rank.actions) {
    const Action action = each.action;
    if (is_send(action.kind) && each.end > 0) {
      sends_[{node, action.stage, peer_stage(action), action.microbatch, each.step}] = &each;
    }
    if (action.kind == Kind::Unshard) ++unshards[{node.process, action.stage, each.step}];
  }
  for (const auto& [stage, count] : unshards) unshards_[stage] = std::max(unshards_[stage], count);
}

const ProcessRecord* Evidence::process(int process) const {
  const auto found = processes_.find(process);
  return found == processes_.end() ? nullptr : found->second;
}

std::string Evidence::name(const Node& node) const {
  const std::string process = "process " + std::to_string(node.process);
  if (node.rank < 0) {
    const std::string ranks = processes_.empty() ? "" : ranks_text(*processes_.begin()->second, node.process);
    return ranks.empty() ? process : process + " (" + ranks + ")";
  }
  std::string text = "rank " + std::to_string(node.rank);
  if (replicas_ > 1) text += " of replica " + std::to_string(node.replica);
  const bool alone = !processes_.empty() && processes_.begin()->second->processes == 1;
  return alone ? text : text + " (" + process + ")";
}

const RecordedAction* Evidence::last(const Node& rank) const {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end()) return nullptr;
  for (const RecordedAction& each : std::views::reverse(found->second->actions)) {
    if (each.action.kind != Kind::Bubble) return &each;
  }
  return nullptr;
}

std::vector<const RecordedAction*> Evidence::unfinished(const Node& rank) const {
  std::vector<const RecordedAction*> actions;
  const auto found = ranks_.find(rank);
  if (found == ranks_.end()) return actions;
  for (const RecordedAction& each : found->second->actions) {
    if (each.end == 0) actions.push_back(&each);
  }
  return actions;
}

Node Evidence::sender(const Node& rank, const RecordedAction& waiting) const {
  const ProcessRecord& record = *processes_.at(rank.process);
  const Stage from = waiting.source();
  if (from < 0 || from >= static_cast<Stage>(record.placement.size())) return rank;
  const Rank home = record.placement[static_cast<std::size_t>(from)];
  const auto& processes = record.process_of[static_cast<std::size_t>(rank.replica)];
  return {processes[static_cast<std::size_t>(home)], rank.replica, home};
}

const RecordedAction* Evidence::sent(const Node& rank, const RecordedAction& waiting) const {
  const auto found = sends_.find({sender(rank, waiting), waiting.source(), waiting.action.stage,
                                  waiting.action.microbatch, waiting.step});
  const bool in_time = found != sends_.end() && found->second->end < processes_.at(rank.process)->written;
  return in_time ? found->second : nullptr;
}

std::vector<Node> Evidence::sharers(const Node& rank) const {
  std::vector<Node> nodes;
  const auto& process_of = processes_.at(rank.process)->process_of;
  for (std::size_t replica = 0; replica < process_of.size(); ++replica) {
    const int process = process_of[replica][static_cast<std::size_t>(rank.rank)];
    if (process != rank.process) nodes.push_back({process, static_cast<int>(replica), rank.rank});
  }
  return nodes;
}

int Evidence::unshards(int process, Stage stage, std::int64_t step) const {
  const auto found = unshards_.find({process, stage, step});
  return found == unshards_.end() ? 0 : found->second;
}

bool Evidence::has_unsharded(int process, const Node& rank, const RecordedAction& waiting) const {
  const Stage stage = waiting.action.stage;
  return unshards(process, stage, waiting.step) >= std::max(1, unshards(rank.process, stage, waiting.step));
}

}  // namespace pipewright
