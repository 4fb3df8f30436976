#include <algorithm>
#include <span>

#include "schedule/ir/availability.h"
#include "schedule/ir/channels.h"
#include "schedule/lower/passes.h"

namespace pipewright {
namespace {

/// Executes all ranks with sends that block until they are received. A rank
/// receives when its next action needs what comes through that channel; only
/// when a circle of ranks is blocked does one of them receive earlier. The
/// order of that execution is the new plan.
class ReceiveDeferral {
 public:
  explicit ReceiveDeferral(Schedule& schedule)
      : schedule_(schedule),
        data_(schedule),
        placed_(schedule.ranks.size()),
        next_(schedule.ranks.size()),
        queued_(schedule.ranks.size()) {
    for (std::size_t rank = 0; rank < placed_.size(); ++rank) {
      auto& actions = schedule.ranks[rank];
      placed_[rank].reserve(actions.size());
      std::erase_if(actions, [](Action action) { return is_receive(action.kind); });
    }
  }

  void run() {
    for (Rank rank = schedule_.rank_count(); rank-- > 0;) wake(rank);
    do {
      while (!queue_.empty()) {
        const Rank rank = queue_.back();
        queue_.pop_back();
        queued_[at(rank)] = false;
        run_rank(rank);
      }
    } while (break_circle());
    schedule_.ranks = std::move(placed_);
  }

 private:
  static std::size_t at(Rank rank) { return static_cast<std::size_t>(rank); }

  bool has_ended(Rank rank) const { return next_[at(rank)] == schedule_.ranks[at(rank)].size(); }
  std::span<const Action> cell(Rank rank) const {
    const std::span<const Action> actions = schedule_.ranks[at(rank)];
    return actions.subspan(next_[at(rank)], cell_size(actions, next_[at(rank)]));
  }

  void run_rank(Rank rank) {
    while (!has_ended(rank)) {
      const std::span<const Action> now = cell(rank);
      if (is_send(now[0].kind)) {  // blocked until received: who computes may need it now
        const Rank to = data_.consumer(now[0]);
        if (!has_ended(to) && !is_send(cell(to)[0].kind)) wake(to);
        return;
      }
      for (const Action action : now) {
        if (!receive_for(rank, action)) return;
      }
      for (const Action action : now) {
        if (data_.consumer(action) == rank) data_.mark(action);
      }
      placed_[at(rank)].insert(placed_[at(rank)].end(), now.begin(), now.end());
      next_[at(rank)] += now.size();
    }
  }

  /// Receives what `action` needs, and what comes before it in the channel. False if it must wait.
  bool receive_for(Rank rank, Action action) {
    while (!data_.is_ready(action)) {
      const Rank sender = waits_for(rank, action);
      if (!is_sending_to(sender, rank)) return false;
      receive(rank, sender);
    }
    return true;
  }

  Rank waits_for(Rank rank, Action action) const {
    if (is_send(action.kind)) return data_.consumer(action);
    Action producer;
    return data_.needs(action, producer) ? schedule_.placement[producer.stage] : rank;
  }

  bool is_sending_to(Rank sender, Rank rank) const {
    return !has_ended(sender) && is_send(cell(sender)[0].kind) && data_.consumer(cell(sender)[0]) == rank;
  }

  void receive(Rank rank, Rank sender) {
    const Action send = cell(sender)[0];
    placed_[at(sender)].push_back(send);
    placed_[at(rank)].push_back(counterpart(send));
    data_.mark(send);
    ++next_[at(sender)];
    wake(sender);
  }

  /// With every rank blocked or ended: finds a circle of waits and lets the
  /// lowest rank in it that is being sent to receive. False if all have ended.
  bool break_circle() {
    Rank rank = 0;
    while (rank < schedule_.rank_count() && has_ended(rank)) ++rank;
    if (rank == schedule_.rank_count()) return false;
    std::vector<Rank> chain;
    while (std::ranges::find(chain, rank) == chain.end()) {
      chain.push_back(rank);
      rank = blocked_on(rank);
    }
    const auto circle = std::ranges::find(chain, rank);
    Rank receiver = -1;
    Rank sender = -1;
    for (auto member = circle; member != chain.end(); ++member) {
      const Rank next = member + 1 == chain.end() ? *circle : *(member + 1);
      if (is_sending_to(*member, next) && (receiver < 0 || next < receiver)) {
        sender = *member;
        receiver = next;
      }
    }
    receive(receiver, sender);
    wake(receiver);
    return true;
  }

  Rank blocked_on(Rank rank) const {
    for (const Action action : cell(rank)) {
      if (is_send(action.kind) || !data_.is_ready(action)) return waits_for(rank, action);
    }
    return rank;
  }

  void wake(Rank rank) {
    if (queued_[at(rank)]) return;
    queued_[at(rank)] = true;
    queue_.push_back(rank);
  }

  Schedule& schedule_;
  Availability data_;
  std::vector<std::vector<Action>> placed_;
  std::vector<std::size_t> next_;
  std::vector<bool> queued_;
  std::vector<Rank> queue_;
};

}  // namespace

void defer_receives(Schedule& schedule) { ReceiveDeferral(schedule).run(); }

}  // namespace pipewright
