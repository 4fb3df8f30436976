#include <algorithm>
#include <span>

#include "schedule/lower/passes.h"

namespace pipewright {
namespace {

/// Writes one rank's new list from its end. A stage is gathered as long as it is
/// among the next `max_active_stages` stages in use; read backwards, each cell
/// moves its own stages to the front of that short list, so the whole look-ahead
/// costs one small update a cell.
class ReverseWriter {
 public:
  ReverseWriter(int max_active_stages, std::size_t actions)
      : limit_(static_cast<std::size_t>(max_active_stages)) {
    reversed_.reserve(actions + 16);
  }

  void precede_by(std::span<const Action> cell) {
    const std::size_t first_freed = reversed_.size();
    for (std::size_t i = cell.size(); i-- > 0;) {
      if (!move_to_front(cell[i].stage)) continue;
      reversed_.push_back(make_action(cell[i].stage, Kind::Reshard));  // not needed after this cell
    }
    // A cell's own stages are all needed, however small the limit.
    const std::size_t active = std::max(limit_, cell.size());
    if (reversed_.size() > first_freed) finish_change(first_freed, active);
    for (std::size_t i = cell.size(); i-- > 0;) reversed_.push_back(cell[i]);
  }

  /// The list from its beginning, where everything in use soon is gathered.
  std::vector<Action> finish() {
    for (auto stage = upcoming_.rbegin(); stage != upcoming_.rend(); ++stage) {
      reversed_.push_back(make_action(*stage, Kind::Unshard));
    }
    return {reversed_.rbegin(), reversed_.rend()};
  }

 private:
  /// True if the stage was not in the list before.
  bool move_to_front(Stage stage) {
    Stage carried = stage;
    for (Stage& slot : upcoming_) {
      std::swap(slot, carried);
      if (carried == stage) return false;
    }
    upcoming_.push_back(carried);
    return true;
  }

  /// Frees come before gathers, in ascending order; what the limit pushes out is gathered later.
  void finish_change(std::size_t first_freed, std::size_t active) {
    const auto freed = reversed_.begin() + static_cast<std::ptrdiff_t>(first_freed);
    std::sort(freed, reversed_.end(), [](Action a, Action b) { return a.stage > b.stage; });
    std::vector<Action> gathered;
    while (upcoming_.size() > active) {
      gathered.push_back(make_action(upcoming_.back(), Kind::Unshard));
      upcoming_.pop_back();
    }
    reversed_.insert(reversed_.begin() + static_cast<std::ptrdiff_t>(first_freed), gathered.begin(),
                     gathered.end());
  }

  std::size_t limit_;
  std::vector<Stage> upcoming_;  // soonest first
  std::vector<Action> reversed_;
};

}  // namespace

Schedule add_unshard(const Schedule& schedule, int max_active_stages) {
  Schedule result = with_empty_lists(schedule);
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const std::span<const Action> actions = schedule.ranks[rank];
    ReverseWriter writer(max_active_stages, actions.size());
    for (std::size_t end = actions.size(); end > 0;) {
      std::size_t begin = end - 1;
      while (begin > 0 && actions[begin - 1].fused_with_next()) --begin;
      writer.precede_by(actions.subspan(begin, end - begin));
      end = begin;
    }
    result.ranks[rank] = writer.finish();
  }
  return result;
}

}  // namespace pipewright
