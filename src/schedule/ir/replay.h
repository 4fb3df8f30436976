#pragma once

#include <cstddef>
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
        awaited_(schedule.ranks.size(), Availability::kNothing) {}

  /// Calls `visit(rank, position, cell)` for every cell that can run. True if all could.
  template <class Visit>
  bool run(Visit&& visit) {
    for (Rank rank = schedule_.rank_count(); rank-- > 0;) ready_.push_back(rank);
    while (!ready_.empty()) {
      const Rank rank = ready_.back();
      ready_.pop_back();
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
    std::size_t at = position_[index(rank)];
    for (std::size_t size = 0; at < actions.size(); at += size) {
      size = actions[at].fused_with_next() ? cell_size(actions, at) : 1;
      if (!can_run(rank, actions.subspan(at, size))) break;
      visit(rank, at, actions.subspan(at, size));
      for (std::size_t part = at; part < at + size; ++part) deliver(rank, actions[part]);
    }
    position_[index(rank)] = at;
  }

  bool can_run(Rank rank, std::span<const Action> cell) {
    for (const Action action : cell) {
      if (dependencies_ == Dependencies::ForwardsOnly && action.kind != Kind::F) continue;
      const std::size_t datum = data_.missing(action).datum;
      if (datum == Availability::kNothing) continue;
      awaited_[index(rank)] = datum;
      return false;
    }
    return true;
  }

  void deliver(Rank rank, Action action) {
    if (is_send(action.kind)) return arrive(data_.carried_by(action), data_.rank_of(peer_stage(action)));
    data_.for_each_given(action, [&](std::size_t datum, Stage to) {
      if (!lowered_ || data_.rank_of(to) == rank) arrive(datum, data_.rank_of(to));
    });
  }

  void arrive(std::size_t datum, Rank to) {
    data_.mark(datum);
    if (awaited_[index(to)] != datum) return;
    awaited_[index(to)] = Availability::kNothing;
    ready_.push_back(to);
  }

  const Schedule& schedule_;
  bool lowered_;
  Dependencies dependencies_;
  Availability data_;
  std::vector<std::size_t> position_;
  std::vector<std::size_t> awaited_;  // the datum that holds up a rank
  std::vector<Rank> ready_;
};

}  // namespace pipewright
