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
  explicit ReceiveDeferral(const Schedule& schedule)
      : schedule_(without_receives(schedule)),
        result_(with_empty_lists(schedule)),
        data_(schedule_),
        next_(schedule.ranks.size()),
        queued_(schedule.ranks.size()),
        walked_(schedule.ranks.size()) {
    for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
      result_.ranks[rank].reserve(schedule.ranks[rank].size());
    }
  }

  Schedule run() {
    for (Rank rank = schedule_.rank_count(); rank-- > 0;) wake(rank);
    do {
      while (!queue_.empty()) {
        const Rank rank = queue_.back();
        queue_.pop_back();
        queued_[at(rank)] = false;
        run_rank(rank);
      }
    } while (break_circle());
    return std::move(result_);
  }

 private:
  static std::size_t at(Rank rank) { return static_cast<std::size_t>(rank); }

  static Schedule without_receives(Schedule schedule) {
    for (auto& actions : schedule.ranks) {
      std::erase_if(actions, [](Action action) { return is_receive(action.kind); });
    }
    return schedule;
  }

  bool has_ended(Rank rank) const { return next_[at(rank)] == schedule_.ranks[at(rank)].size(); }
  std::span<const Action> cell(Rank rank) const {
    const std::span<const Action> actions = schedule_.ranks[at(rank)];
    return actions.subspan(next_[at(rank)], cell_size(actions, next_[at(rank)]));
  }

  void run_rank(Rank rank) {
    while (!has_ended(rank)) {
      const std::span<const Action> now = cell(rank);
      if (is_send(now[0].kind)) {  // blocked until received: who computes may need it now
        const Rank to = waits_for(now[0]);
        if (!has_ended(to) && !is_send(cell(to)[0].kind)) wake(to);
        return;
      }
      for (const Action action : now) {
        if (!receive_for(rank, action)) return;
      }
      for (const Action action : now) {
        data_.for_each_given(action, [&](std::size_t datum, Stage to) {
          if (data_.rank_of(to) == rank) data_.mark(datum);
        });
      }
      auto& out = result_.ranks[at(rank)];
      for (const Action action : now) out.push_back(action);
      next_[at(rank)] += now.size();
    }
  }

  /// Receives what `action` needs, and what comes before it in the channel. False if it must wait.
  bool receive_for(Rank rank, Action action) {
    while (!data_.is_ready(action)) {
      const Rank sender = waits_for(action);
      if (!is_sending_to(sender, rank)) return false;
      receive(rank, sender);
    }
    return true;
  }

  /// The rank that a send, or an action whose data is not there yet, waits for.
  Rank waits_for(Action action) const {
    return data_.rank_of(is_send(action.kind) ? peer_stage(action) : data_.missing(action).from);
  }

  bool is_sending_to(Rank sender, Rank rank) const {
    return !has_ended(sender) && is_send(cell(sender)[0].kind) && waits_for(cell(sender)[0]) == rank;
  }

  void receive(Rank rank, Rank sender) {
    const Action send = cell(sender)[0];
    result_.ranks[at(sender)].push_back(send);
    result_.ranks[at(rank)].push_back(counterpart(send));
    data_.mark(data_.carried_by(send));
    ++next_[at(sender)];
    wake(sender);
  }

  /// With every rank blocked or ended: finds a circle of waits and lets the
  /// lowest rank in it that is being sent to receive. False if all have ended.
  bool break_circle() {
    // Circles follow each other from near to near: begin where the last one was.
    Rank rank = last_receiver_;
    for (Rank tried = 0; has_ended(rank); ++tried) {
      if (tried == schedule_.rank_count()) return false;
      rank = (rank + 1) % schedule_.rank_count();
    }
    ++walk_;
    for (; walked_[at(rank)] != walk_; rank = blocked_on(rank)) walked_[at(rank)] = walk_;
    // Now in the circle: once around.
    const Rank first = rank;
    Rank receiver = -1;
    Rank sender = -1;
    do {
      const Rank next = blocked_on(rank);
      if (is_sending_to(rank, next) && (receiver < 0 || next < receiver)) {
        sender = rank;
        receiver = next;
      }
      rank = next;
    } while (rank != first);
    receive(receiver, sender);
    last_receiver_ = receiver;
    wake(receiver);
    return true;
  }

  Rank blocked_on(Rank rank) const {
    for (const Action action : cell(rank)) {
      if (is_send(action.kind) || !data_.is_ready(action)) return waits_for(action);
    }
    return rank;
  }

  void wake(Rank rank) {
    if (queued_[at(rank)]) return;
    queued_[at(rank)] = true;
    queue_.push_back(rank);
  }

  Schedule schedule_;
  Schedule result_;
  Availability data_;
  std::vector<std::size_t> next_;
  std::vector<bool> queued_;
  std::vector<Rank> queue_;
  Rank last_receiver_ = 0;
  std::size_t walk_ = 0;             // numbers the searches for a circle
  std::vector<std::size_t> walked_;  // the last search that came by each rank
};

}  // namespace

Schedule defer_receives(const Schedule& schedule) { return ReceiveDeferral(schedule).run(); }

}  // namespace pipewright
