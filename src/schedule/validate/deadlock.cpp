#include "pipewright/schedule/deadlock.h"

#include <algorithm>

#include "schedule/ir/channels.h"

namespace pipewright {
namespace {

/// Executes the messages of a plan with channels of limited capacity. Compute
/// never blocks: validation has shown that it stands after its receives.
class MessageRun {
 public:
  MessageRun(const Schedule& plan, const ChannelCapacity& capacity)
      : plan_(plan),
        channels_(plan),
        next_(plan.ranks.size()),
        in_flight_(channels_.size()),
        capacity_(channels_.size(), capacity.messages),
        queued_(plan.ranks.size()) {
    for (const auto& [from, to, messages] : capacity.overrides) {
      const std::size_t channel = channels_.between(from, to);
      if (channel < channels_.size()) capacity_[channel] = messages;
    }
  }

  void run() {
    for (Rank rank = plan_.rank_count(); rank-- > 0;) wake(rank);
    while (!queue_.empty()) {
      const Rank rank = queue_.back();
      queue_.pop_back();
      queued_[at(rank)] = false;
      while (!has_ended(rank) && step(rank)) ++next_[at(rank)];
    }
  }

  bool has_ended(Rank rank) const { return next_[at(rank)] == plan_.ranks[at(rank)].size(); }

  BlockedRank blocked(Rank rank) const {
    const Action action = head(rank);
    const Action needs = counterpart(action);
    return {.rank = rank,
            .step = step_of(plan_.ranks[at(rank)], next_[at(rank)]),
            .action = action,
            .peer = plan_.placement[needs.stage],
            .needs = needs};
  }

 private:
  static std::size_t at(Rank rank) { return static_cast<std::size_t>(rank); }
  Action head(Rank rank) const { return plan_.ranks[at(rank)][next_[at(rank)]]; }

  /// True if the rank's next action can run now.
  bool step(Rank rank) {
    const Action action = head(rank);
    if (is_send(action.kind)) return send(action);
    if (is_receive(action.kind)) return receive(action);
    return true;
  }

  bool send(Action action) {
    const std::size_t channel = channels_.of(action);
    const Rank to = channels_.ends(channel).to;
    if (in_flight_[channel] < capacity_[channel]) {
      ++in_flight_[channel];
    } else if (in_flight_[channel] == 0 && is_at(to, counterpart(action))) {
      ++next_[at(to)];  // handed over directly
    } else {
      return false;
    }
    wake(to);
    return true;
  }

  bool receive(Action action) {
    const std::size_t channel = channels_.of(action);
    const Rank from = channels_.ends(channel).from;
    if (in_flight_[channel] > 0) {
      --in_flight_[channel];
    } else if (is_at(from, counterpart(action))) {
      ++next_[at(from)];
    } else {
      return false;
    }
    wake(from);
    return true;
  }

  bool is_at(Rank rank, Action action) const { return !has_ended(rank) && head(rank) == action; }

  void wake(Rank rank) {
    if (queued_[at(rank)]) return;
    queued_[at(rank)] = true;
    queue_.push_back(rank);
  }

  const Schedule& plan_;
  Channels channels_;
  std::vector<std::size_t> next_;
  std::vector<std::size_t> in_flight_;
  std::vector<std::size_t> capacity_;
  std::vector<bool> queued_;
  std::vector<Rank> queue_;
};

}  // namespace

std::string to_text(const DeadlockVerdict& verdict) {
  if (verdict.free()) return "free of deadlock";
  std::string text;
  for (const BlockedRank& blocked : verdict.cycle) {
    if (!text.empty()) text += '\n';
    text += "rank " + std::to_string(blocked.rank) + " step " + std::to_string(blocked.step) + ": " +
            to_text(blocked.action) + " waits for " + to_text(blocked.needs) + " of rank " +
            std::to_string(blocked.peer);
  }
  return text;
}

DeadlockVerdict prove_deadlock_free(const Schedule& plan, const ChannelCapacity& capacity) {
  MessageRun messages(plan, capacity);
  messages.run();
  Rank rank = 0;
  while (rank < plan.rank_count() && messages.has_ended(rank)) ++rank;
  if (rank == plan.rank_count()) return {};
  // Each blocked rank waits for one other: following that leads into a circle.
  std::vector<BlockedRank> chain;
  const auto in_chain = [&](Rank wanted) {
    return std::ranges::find_if(chain, [&](const BlockedRank& link) { return link.rank == wanted; });
  };
  while (!messages.has_ended(rank) && in_chain(rank) == chain.end()) {
    chain.push_back(messages.blocked(rank));
    rank = chain.back().peer;
  }
  if (!messages.has_ended(rank)) chain.erase(chain.begin(), in_chain(rank));
  return {.cycle = std::move(chain)};
}

}  // namespace pipewright
