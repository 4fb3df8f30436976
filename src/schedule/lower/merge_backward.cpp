#include "schedule/lower/passes.h"

namespace pipewright {

void merge_backward(Schedule& schedule) {
  for (auto& actions : schedule.ranks) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < actions.size(); ++i) {
      Action action = actions[i];
      if (action.kind == Kind::I && i + 1 < actions.size() && !action.fused_with_next) {
        const Action next = actions[i + 1];
        const bool is_part = i > 0 && actions[i - 1].fused_with_next;
        if (!is_part && next.kind == Kind::W && next.stage == action.stage &&
            next.microbatch == action.microbatch) {
          action.kind = Kind::B;
          ++i;
        }
      }
      actions[kept++] = action;
    }
    actions.resize(kept);
  }
}

}  // namespace pipewright
