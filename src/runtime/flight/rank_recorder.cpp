#include "runtime/flight/rank_recorder.h"

#include <algorithm>

namespace pipewright {

RankRecord RankRecorder::read() const {
  RankRecord record{.replica = position_.replica, .rank = position_.rank, .actions = {}};
  const Microseconds offset = wall_clock(Clock::time_point());
  const auto wall = [offset](Clock::time_point time) -> Microseconds {
    if (time == Clock::time_point()) return 0;
    return offset + std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
  };
  const Ticket next = next_.load(std::memory_order_acquire);
  for (Ticket ticket = next - std::min<Ticket>(next, kKept); ticket < next; ++ticket) {
    const Entry& entry = at(ticket);
    if (entry.ticket.load(std::memory_order_acquire) != ticket) continue;
    const RecordedAction action{.action = std::bit_cast<Action>(entry.action.load(std::memory_order_relaxed)),
                                .step = entry.step.load(std::memory_order_relaxed),
                                .need = entry.need.load(std::memory_order_relaxed),
                                .from = entry.from.load(std::memory_order_relaxed),
                                .start = wall(entry.start.load(std::memory_order_relaxed)),
                                .ready = wall(entry.ready.load(std::memory_order_relaxed)),
                                .end = wall(entry.end.load(std::memory_order_relaxed))};
    std::atomic_thread_fence(std::memory_order_acquire);
    // Not if it was overwritten meanwhile.
    if (entry.ticket.load(std::memory_order_relaxed) == ticket) record.actions.push_back(action);
  }
  return record;
}

}  // namespace pipewright
