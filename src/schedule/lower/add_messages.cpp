#include <bit>
#include <cstdint>
#include <span>

#include "schedule/ir/availability.h"
#include "schedule/ir/channels.h"
#include "schedule/lower/passes.h"

namespace pipewright {
namespace {

/// A set of ranks that is emptied in ascending order.
class RankSet {
 public:
  explicit RankSet(std::size_t ranks) : words_((ranks + 63) / 64) {}

  void insert(Rank rank) { words_[word(rank)] |= bit(rank); }
  /// Removes and returns the least rank ≥ `from`, or −1.
  Rank take_from(Rank from) {
    for (std::size_t w = word(from); w < words_.size(); ++w) {
      const std::uint64_t mask =
          w == word(from) ? ~std::uint64_t{0} << (static_cast<unsigned>(from) % 64U) : ~std::uint64_t{0};
      const std::uint64_t candidates = words_[w] & mask;
      if (candidates == 0) continue;
      words_[w] &= ~(candidates & -candidates);
      return static_cast<Rank>(w * 64 + static_cast<std::size_t>(std::countr_zero(candidates)));
    }
    return -1;
  }

 private:
  static std::size_t word(Rank rank) { return static_cast<std::size_t>(rank) / 64; }
  static std::uint64_t bit(Rank rank) { return std::uint64_t{1} << (static_cast<unsigned>(rank) % 64U); }
  std::vector<std::uint64_t> words_;
};

/// Executes all ranks in rounds: in each, every rank in turn runs one cell if it
/// can. Ranks that wait are not looked at until something reaches them.
class MessagePlacer {
 public:
  explicit MessagePlacer(const Schedule& schedule)
      : schedule_(schedule),
        result_(with_empty_lists(schedule)),
        data_(schedule),
        next_(schedule.ranks.size()),
        awaited_(schedule.ranks.size(), Availability::kNothing),
        this_round_(schedule.ranks.size()),
        next_round_(schedule.ranks.size()) {
    for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
      result_.ranks[rank].reserve(3 * schedule.ranks[rank].size());
    }
  }

  Schedule run() {
    for (Rank rank = 0; rank < schedule_.rank_count(); ++rank) this_round_.insert(rank);
    for (bool progress = true; progress;) {
      progress = false;
      for (Rank rank = this_round_.take_from(0); rank >= 0; rank = this_round_.take_from(rank + 1)) {
        if (!run_cell(rank)) continue;
        next_round_.insert(rank);
        progress = true;
      }
      std::swap(this_round_, next_round_);
    }
    return std::move(result_);
  }

 private:
  bool run_cell(Rank rank) {
    const std::span<const Action> actions = schedule_.ranks[static_cast<std::size_t>(rank)];
    std::size_t& at = next_[static_cast<std::size_t>(rank)];
    if (at == actions.size()) return false;
    const std::span<const Action> cell = actions.subspan(at, cell_size(actions, at));
    for (const Action action : cell) {
      const std::size_t datum = data_.missing(action).datum;
      if (datum == Availability::kNothing) continue;
      awaited_[static_cast<std::size_t>(rank)] = datum;
      return false;
    }
    auto& out = result_.ranks[static_cast<std::size_t>(rank)];
    for (const Action action : cell) out.push_back(action);  // cells are short: cheaper than a range
    for (const Action action : cell) deliver(rank, action);
    at += cell.size();
    return true;
  }

  void deliver(Rank rank, Action action) {
    data_.for_each_given(action, [&](std::size_t datum, Stage consumer) {
      data_.mark(datum);
      const Rank to = data_.rank_of(consumer);
      if (to == rank) return;
      const Action send = make_message(action.stage, action.kind == Kind::F ? Kind::SendF : Kind::SendB,
                                       static_cast<Microbatch>(action.microbatch), consumer);
      result_.ranks[static_cast<std::size_t>(rank)].push_back(send);
      result_.ranks[static_cast<std::size_t>(to)].push_back(counterpart(send));
      if (awaited_[static_cast<std::size_t>(to)] != datum) return;
      awaited_[static_cast<std::size_t>(to)] = Availability::kNothing;
      (to > rank ? this_round_ : next_round_).insert(to);
    });
  }

  const Schedule& schedule_;
  Schedule result_;
  Availability data_;
  std::vector<std::size_t> next_;
  std::vector<std::size_t> awaited_;  // the datum that holds up a rank
  RankSet this_round_;
  RankSet next_round_;
};

}  // namespace

Schedule add_messages(const Schedule& schedule) { return MessagePlacer(schedule).run(); }

}  // namespace pipewright
