#include <algorithm>
#include <span>

#include "schedule/lower/passes.h"

namespace pipewright {
namespace {

/// The next stages in use from a cell on, soonest first. Read backwards from
/// the end of the list, each cell moves its own stages to the front, so that
/// the whole look-ahead costs one small update a cell.
class UpcomingStages {
 public:
  explicit UpcomingStages(int limit) : limit_(static_cast<std::size_t>(limit)) {}

  void precede_by(std::span<const Action> cell) {
    for (std::size_t i = cell.size(); i-- > 0;) {
      const Stage stage = cell[i].stage;
      const auto known = std::ranges::find(stages_, stage);
      if (known == stages_.end()) {
        stages_.insert(stages_.begin(), stage);
      } else {
        std::rotate(stages_.begin(), known, known + 1);
      }
    }
    // A cell's own stages are all needed, however small the limit.
    stages_.resize(std::min(stages_.size(), std::max(limit_, cell.size())));
  }

  const std::vector<Stage>& stages() const { return stages_; }
  bool contains(Stage stage) const { return std::ranges::find(stages_, stage) != stages_.end(); }

 private:
  std::size_t limit_;
  std::vector<Stage> stages_;
};

/// Appends, in reverse, what changes the gathered stages from `before` to `after`.
void append_change_reversed(const UpcomingStages& before, const UpcomingStages& after,
                            std::vector<Action>& reversed) {
  for (auto stage = after.stages().rbegin(); stage != after.stages().rend(); ++stage) {
    if (!before.contains(*stage)) reversed.push_back(make_action(*stage, Kind::Unshard));
  }
  const std::size_t first_freed = reversed.size();
  for (const Stage stage : before.stages()) {
    if (!after.contains(stage)) reversed.push_back(make_action(stage, Kind::Reshard));
  }
  std::sort(reversed.begin() + static_cast<std::ptrdiff_t>(first_freed), reversed.end(),
            [](Action a, Action b) { return a.stage > b.stage; });
}

}  // namespace

void add_unshard(Schedule& schedule, int max_active_stages) {
  std::vector<Action> reversed;
  for (auto& actions : schedule.ranks) {
    reversed.clear();
    UpcomingStages upcoming(max_active_stages);
    UpcomingStages later(max_active_stages);
    for (std::size_t end = actions.size(); end > 0;) {
      std::size_t begin = end - 1;
      while (begin > 0 && actions[begin - 1].fused_with_next) --begin;
      const std::span<const Action> cell(actions.data() + begin, end - begin);
      const Stage front = upcoming.stages().empty() ? -1 : upcoming.stages().front();
      if (cell.size() != 1 || cell[0].stage != front) {
        later = upcoming;
        upcoming.precede_by(cell);
        append_change_reversed(upcoming, later, reversed);
      }
      reversed.insert(reversed.end(), cell.rbegin(), cell.rend());
      end = begin;
    }
    append_change_reversed(UpcomingStages(max_active_stages), upcoming, reversed);
    actions.assign(reversed.rbegin(), reversed.rend());
  }
}

}  // namespace pipewright
