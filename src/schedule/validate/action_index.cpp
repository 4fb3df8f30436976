#include "schedule/validate/action_index.h"

namespace pipewright {

ActionIndex::ActionIndex(const Schedule& schedule)
    : edges_(schedule),
      first_skip_(schedule.placement.size()),
      microbatches_(static_cast<std::size_t>(schedule.microbatches)),
      entries_(schedule.placement.size() * microbatches_),
      skip_messages_(4 * schedule.skips.size() * microbatches_, kAbsent) {
  for (Rank rank = 0; rank < schedule.rank_count(); ++rank) {
    const auto& actions = schedule.ranks[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const Action action = actions[i];
      if (!has_microbatch(action.kind)) continue;
      const auto here = static_cast<std::uint32_t>(i);
      if (action.link != 0 && is_message(action.kind)) [[unlikely]] {
        place(skip_messages_[skip_slot(edges_.of(action), action)], rank, here);
      } else {
        place(entries_[action.stage * microbatches_ + action.microbatch][action.kind], rank, here);
      }
    }
  }
}

void ActionIndex::place(std::uint32_t& position, Rank rank, std::uint32_t here) {
  if (position == kAbsent) {
    position = here;
  } else {
    duplicates_.push_back({.rank = rank, .position = here});
  }
}

}  // namespace pipewright
