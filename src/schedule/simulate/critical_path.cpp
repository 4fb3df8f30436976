#include <algorithm>
#include <cmath>

#include "pipewright/schedule/timeline.h"
#include "schedule/ir/channels.h"
#include "schedule/validate/action_index.h"

namespace pipewright {
namespace {

/// Walks back from the action that ends last: at each, to whatever it waited
/// for longest. An action waits for the one before it on its rank and for its
/// data; a message for its two ends.
class BackwardWalk {
 public:
  explicit BackwardWalk(const Timeline& timeline)
      : timeline_(timeline), schedule_(schedule_of(timeline)), edges_(schedule_), index_(schedule_) {}

  std::vector<TimelinePosition> run() {
    std::vector<TimelinePosition> path;
    TimelinePosition at{};
    if (!find_last(at)) return path;
    do path.push_back(at);
    while (step_back(at));
    std::ranges::reverse(path);
    return path;
  }

 private:
  static Schedule schedule_of(const Timeline& timeline) {
    Schedule schedule;
    schedule.placement = timeline.placement;
    schedule.microbatches = timeline.microbatches;
    schedule.skips = timeline.skips;
    for (const auto& rank : timeline.ranks) {
      auto& actions = schedule.ranks.emplace_back();
      for (const TimedAction& timed : rank) actions.push_back(timed.action);
    }
    return schedule;
  }

  const TimedAction& timed(TimelinePosition at) const {
    return timeline_.ranks[static_cast<std::size_t>(at.rank)][at.position];
  }

  bool find_last(TimelinePosition& last) const {
    bool found = false;
    for (Rank rank = 0; rank < schedule_.rank_count(); ++rank) {
      const auto& actions = timeline_.ranks[static_cast<std::size_t>(rank)];
      for (std::size_t i = 0; i < actions.size(); ++i) {
        if (!is_compute(actions[i].action.kind)) continue;
        if (!found || actions[i].end > timed(last).end) last = {.rank = rank, .position = i};
        found = true;
      }
    }
    return found;
  }

  bool step_back(TimelinePosition& at) const {
    TimelinePosition best{};
    double best_end = -1;
    const auto consider = [&](TimelinePosition candidate, double end) {
      if (end <= best_end) return;
      best = candidate;
      best_end = end;
    };
    const Action action = timed(at).action;
    if (is_receive(action.kind)) {
      // It lasted from its posting to its arrival: what posted the later end is the cause.
      const TimelinePosition send = position(counterpart(action));
      if (timed(send).start > timed(at).start) return at = send, true;
      return previous_compute(at, at);
    }
    for (const TimelinePosition part : parts(at)) {
      for_each_source(timed(part).action,
                      [&](TimelinePosition source) { consider(source, timed(source).end); });
    }
    TimelinePosition previous{};
    if (previous_compute(at, previous)) consider(previous, timed(previous).end);
    if (best_end < 0) return false;
    at = best;
    return true;
  }

  /// The parts of the block that an action belongs to: each may have held it up.
  std::vector<TimelinePosition> parts(TimelinePosition at) const {
    const auto& actions = timeline_.ranks[static_cast<std::size_t>(at.rank)];
    std::size_t first = at.position;
    while (first > 0 && actions[first - 1].action.fused_with_next() &&
           actions[first - 1].start == actions[at.position].start) {
      --first;
    }
    std::vector<TimelinePosition> result;
    for (std::size_t i = first; i < actions.size(); ++i) {
      if (actions[i].start != actions[at.position].start) break;
      result.push_back({.rank = at.rank, .position = i});
      if (!actions[i].action.fused_with_next()) break;
    }
    return result;
  }

  bool previous_compute(TimelinePosition at, TimelinePosition& previous) const {
    const auto& actions = timeline_.ranks[static_cast<std::size_t>(at.rank)];
    const TimelinePosition first = is_compute(timed(at).action.kind) ? parts(at).front() : at;
    for (std::size_t i = first.position; i-- > 0;) {
      if (!is_compute(actions[i].action.kind)) continue;
      previous = {.rank = at.rank, .position = i};
      return true;
    }
    return false;
  }

  /// Calls `visit` with what brings a compute action its data from each other stage.
  template <class Visit>
  void for_each_source(Action action, Visit visit) const {
    const bool forward = action.kind == Kind::F;
    if (!forward && !gives_input_grad(action.kind)) return;
    edges_.for_each(action.stage, forward ? Edges::To::Earlier : Edges::To::Later,
                    [&](Stage from, std::size_t) { visit(source(action, from)); });
  }

  /// The receive of what comes from stage `from`, or the compute action there itself.
  TimelinePosition source(Action action, Stage from) const {
    const bool forward = action.kind == Kind::F;
    const auto microbatch = static_cast<Microbatch>(action.microbatch);
    const Action receive = make_message(action.stage, forward ? Kind::RecvF : Kind::RecvB, microbatch, from);
    if (index_.message(receive) != ActionIndex::kAbsent) return position(receive);
    const ActionIndex::Entry& entry = index_.at(from, microbatch);
    return {.rank = schedule_.placement[static_cast<std::size_t>(from)],
            .position = forward ? entry[Kind::F] : entry.input_grad()};
  }

  TimelinePosition position(Action message) const {
    return {.rank = schedule_.placement[message.stage], .position = index_.message(message)};
  }

  const Timeline& timeline_;
  Schedule schedule_;
  Edges edges_;
  ActionIndex index_;
};

}  // namespace

std::vector<TimelinePosition> critical_path(const Timeline& timeline) { return BackwardWalk(timeline).run(); }

}  // namespace pipewright
