#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "pipewright/flight/record.h"
#include "runtime/flight/clock.h"
#include "runtime/world/mesh.h"

namespace pipewright {

/// Keeps the last actions of a rank: a ring that is written without locks, by the rank's threads, and can be
/// read at any time.
class RankRecorder {
 public:
  explicit RankRecorder(Position position) : position_(position) {}

  /// Which action; good until the ring has gone round.
  using Ticket = std::uint64_t;
  Ticket begin(Action action, std::int64_t step, Clock::time_point now) noexcept {
    const Ticket ticket = next_.fetch_add(1, std::memory_order_relaxed);
    Entry& entry = at(ticket);
    entry.ticket.store(kNone, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    entry.action.store(std::bit_cast<std::uint64_t>(action), std::memory_order_relaxed);
    entry.step.store(step, std::memory_order_relaxed);
    entry.need.store(Need::Nothing, std::memory_order_relaxed);
    entry.from.store(-1, std::memory_order_relaxed);
    entry.start.store(now, std::memory_order_relaxed);
    entry.ready.store({}, std::memory_order_relaxed);
    entry.end.store({}, std::memory_order_relaxed);
    entry.ticket.store(ticket, std::memory_order_release);
    return ticket;
  }
  /// `from`: the stage that a message comes from over a skip.
  void needs(Ticket ticket, Need need, Stage from = -1) noexcept {
    at(ticket).ready.store({}, std::memory_order_relaxed);
    at(ticket).from.store(from, std::memory_order_relaxed);
    at(ticket).need.store(need, std::memory_order_relaxed);
  }
  void ready(Ticket ticket, Clock::time_point now) noexcept {
    at(ticket).ready.store(now, std::memory_order_relaxed);
  }
  void end(Ticket ticket, Clock::time_point now) noexcept {
    at(ticket).end.store(now, std::memory_order_relaxed);
  }

  /// Those that are still there, oldest first; times on the machine's clock.
  RankRecord read() const;

 private:
  static constexpr std::size_t kKept = 512;
  static constexpr Ticket kNone = ~Ticket{0};

  struct Entry {
    std::atomic<Ticket> ticket = kNone;  // none while it is written
    std::atomic<std::uint64_t> action;
    std::atomic<std::int64_t> step;
    std::atomic<Need> need;
    std::atomic<Stage> from;
    std::atomic<Clock::time_point> start;
    std::atomic<Clock::time_point> ready;
    std::atomic<Clock::time_point> end;
  };
  Entry& at(Ticket ticket) { return entries_[ticket % kKept]; }
  const Entry& at(Ticket ticket) const { return entries_[ticket % kKept]; }

  const Position position_;
  std::atomic<Ticket> next_ = 0;
  std::array<Entry, kKept> entries_;
};

}  // namespace pipewright
