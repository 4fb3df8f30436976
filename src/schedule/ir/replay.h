#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "pipewright/schedule/schedule.h"
#include "schedule/ir/availability.h"

namespace pipewright {

/// Runs all ranks' lists in turn, each as far as the data it needs is there. In
/// a lowered schedule data reaches another rank by its SEND, else by its F, B or
/// I itself. Every cell is visited once, after all it needs; the cost is linear.
///
/// REQUIRES: every stage has a rank, every index is within the schedule's counts.
class Replay {
 public:
  enum class Dependencies { All, ForwardsOnly };

  Replay(const Schedule& schedule, bool lowered, Dependencies dependencies = Dependencies::All)
      : schedule_(schedule),
        lowered_(lowered),
        dependencies_(dependencies),
        data_(schedule),
        position_(schedule.ranks.size()),
        queued_(schedule.ranks.size()) {}

  /// Calls `visit(rank, position, cell)` for every cell that can run. True if all could.
  template <class Visit>
  bool run(Visit&& visit) {
    for (Rank rank = schedule_.rank_count(); rank-- > 0;) wake(rank);
    while (!queue_.empty()) {
      const Rank rank = queue_.back();
      queue_.pop_back();
      queued_[index(rank)] = 0;
      run_rank(rank, visit);
    }
    for (std::size_t rank = 0; rank < position_.size(); ++rank) {
      if (position_[rank] < schedule_.ranks[rank].size()) return false;
    }
    return true;
  }

  /// Where a rank stopped: the first action that never ran, or the end of its list.
  std::size_t position(Rank rank) const { return position_[index(rank)]; }
  /// What has reached its consumer so far.
  const Availability& data() const { return data_; }

 private:
  static std::size_t index(Rank rank) { return static_cast<std::size_t>(rank); }

  template <class Visit>
  void run_rank(Rank rank, Visit& visit) {
    const std::span<const Action> actions = schedule_.ranks[index(rank)];
    std::size_t& at = position_[index(rank)];
    while (at < actions.size()) {
      const std::span<const Action> cell = actions.subspan(at, cell_size(actions, at));
      for (const Action action : cell) {
        if (!is_ready(action)) return;
      }
      visit(rank, at, cell);
      at += cell.size();
      for (const Action action : cell) deliver(rank, action);
    }
  }

  bool is_ready(Action action) const {
    if (dependencies_ == Dependencies::ForwardsOnly && action.kind != Kind::F) return true;
    return data_.is_ready(action);
  }

  void deliver(Rank rank, Action action) {
    const Rank to = data_.consumer(action);
    if (to < 0 || (lowered_ && to != rank && is_compute(action.kind))) return;
    data_.mark(action);
    if (to != rank) wake(to);
  }

  void wake(Rank rank) {
    if (queued_[index(rank)] != 0) return;
    queued_[index(rank)] = 1;
    queue_.push_back(rank);
  }

  const Schedule& schedule_;
  bool lowered_;
  Dependencies dependencies_;
  Availability data_;
  std::vector<std::size_t> position_;
  std::vector<std::uint8_t> queued_;
  std::vector<Rank> queue_;
};

}  // namespace pipewright
