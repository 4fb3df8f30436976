#include "pipewright/flight/drawing.h"

#include <algorithm>
#include <utility>

#include "flight/evidence.h"

namespace pipewright {
namespace {

/// The time after the last event is drawn no longer than this share of the time before it.
constexpr double kTail = 0.5;

/// An action of the step, with the record that it is in.
struct Shown {
  const ProcessRecord* record;
  const RankRecord* rank;
  const RecordedAction* action;
};

std::int64_t last_step(const std::vector<ProcessRecord>& records, int replica) {
  std::int64_t step = 0;
  for (const ProcessRecord& record : records) {
    for (const RankRecord& rank : record.ranks) {
      if (rank.replica != replica) continue;
      for (const RecordedAction& each : rank.actions) step = std::max(step, each.step);
    }
  }
  return step;
}

std::vector<Shown> actions_of(const std::vector<ProcessRecord>& records, int replica, std::int64_t step) {
  std::vector<Shown> shown;
  for (const ProcessRecord& record : records) {
    for (const RankRecord& rank : record.ranks) {
      if (rank.replica != replica) continue;
      for (const RecordedAction& each : rank.actions) {
        const bool happened = each.start > 0 && each.action.kind != Kind::Bubble;
        if (happened && each.step == step) shown.push_back({&record, &rank, &each});
      }
    }
  }
  return shown;
}

class StepDrawing {
 public:
  StepDrawing(const std::vector<ProcessRecord>& records, int replica)
      : records_(records),
        replica_(replica),
        step_(last_step(records, replica)),
        shown_(actions_of(records, replica, step_)) {
    for (const Shown& each : shown_) {
      origin_ = origin_ == 0 ? each.action->start : std::min(origin_, each.action->start);
    }
    for (const Shown& each : shown_) {
      event(each.action->start);
      event(each.action->ready);
      event(each.action->end);
      if (each.action->end == 0) now_ = std::max(now_, milliseconds(each.record->written));
    }
    for (const ProcessRecord& record : records) {
      if (!record.wait) continue;
      event(record.wait->since);
      now_ = std::max(now_, milliseconds(record.written));
    }
    end_ = last_event_ > 0 ? last_event_ * (1 + kTail) : now_;
  }

  Drawing draw() {
    const ProcessRecord& world = records_.front();
    const auto& ranks = world.process_of[static_cast<std::size_t>(replica_)];
    drawing_.name = "Step " + std::to_string(step_);
    if (world.process_of.size() > 1) drawing_.name += " of replica " + std::to_string(replica_);
    drawing_.label = label();
    drawing_.source = "recorded";
    drawing_.complete = false;
    drawing_.costs = uniform_costs(world.placement);
    drawing_.timeline = {.ranks = decltype(Timeline::ranks)(ranks.size()),
                         .placement = world.placement,
                         .microbatches = world.microbatches};
    for (const Shown& each : shown_) add(each);
    for (const ProcessRecord& record : records_) {
      if (record.wait) add_process_wait(record, *record.wait);
    }
    for (auto& rank : drawing_.timeline.ranks) fuse_overlapped(rank);
    return std::move(drawing_);
  }

 private:
  void event(Microseconds time) { last_event_ = std::max(last_event_, milliseconds(time)); }

  double milliseconds(Microseconds time) const {
    return time <= origin_ ? 0 : static_cast<double>(time - origin_) / 1000;
  }

  std::string label() const {
    std::string text = "the last on record, in ms";
    if (now_ > end_) {
      text += "; the last " + seconds_text(static_cast<Microseconds>((now_ - last_event_) * 1000)) +
              ", in which nothing happened, are cut short";
    }
    return text;
  }

  void add(const Shown& shown) {
    const RecordedAction& action = *shown.action;
    const double start = milliseconds(action.start);
    const double end = std::max(start, action.end > 0 ? milliseconds(action.end) : end_of(*shown.record));
    if (action.waits()) {
      add_wait(shown, start, end, "has waited " + seconds_text(shown.record->written - action.start));
      return;
    }
    const bool waited = action.need != Need::Nothing;
    if (waited && action.ready == 0) {
      add_wait(shown, start, end, "waited in vain");
      return;
    }
    const double ready = waited ? std::clamp(milliseconds(action.ready), start, end) : start;
    if (ready > start) add_wait(shown, start, ready, "waited");
    auto& rank = drawing_.timeline.ranks[static_cast<std::size_t>(shown.rank->rank)];
    if (action.end == 0) drawing_.unfinished.push_back({shown.rank->rank, rank.size()});
    rank.push_back({.action = action.action, .start = ready, .end = end});
  }

  void add_wait(const Shown& shown, double start, double end, const std::string& waits) {
    drawing_.waits.push_back(
        {.rank = shown.rank->rank,
         .action = shown.action->action,
         .start = start,
         .end = end,
         .text = to_text(shown.action->action) + " " + waits + " for the " + need_text(*shown.action),
         .lasts = shown.action->waits()});
  }

  /// Where what has not ended in a process ends in the drawing.
  double end_of(const ProcessRecord& record) const { return std::min(end_, milliseconds(record.written)); }

  /// In the lanes of its ranks, from where each of them had ended what it did.
  void add_process_wait(const ProcessRecord& record, const ProcessWait& wait) {
    for (const RankRecord& rank : record.ranks) {
      if (rank.replica != replica_) continue;
      double start = milliseconds(wait.since);
      for (const TimedAction& timed : drawing_.timeline.ranks[static_cast<std::size_t>(rank.rank)]) {
        start = std::max(start, timed.end);
      }
      const double end = end_of(record);
      if (end <= start) continue;
      drawing_.waits.push_back({.rank = rank.rank,
                                .action = {},
                                .start = start,
                                .end = end,
                                .text = "process " + std::to_string(record.process) + " has waited " +
                                        seconds_text(record.written - wait.since) + " for the " + wait.what,
                                .lasts = true});
    }
  }

  /// A record does not say which actions were the parts of an OVERLAP_F_B; those that ran at one time were.
  static void fuse_overlapped(std::vector<TimedAction>& rank) {
    for (std::size_t i = 0; i + 1 < rank.size(); ++i) {
      const Kind a = rank[i].action.kind;
      const Kind b = rank[i + 1].action.kind;
      const bool pair = (a == Kind::F && gives_input_grad(b)) || (gives_input_grad(a) && b == Kind::F);
      const bool taken = i > 0 && rank[i - 1].action.fused_with_next();
      if (pair && !taken && rank[i + 1].start < rank[i].end && rank[i].start < rank[i + 1].end) {
        rank[i].action = fused(rank[i].action);
      }
    }
  }

  const std::vector<ProcessRecord>& records_;
  int replica_;
  std::int64_t step_;
  std::vector<Shown> shown_;
  Microseconds origin_ = 0;
  /// In milliseconds: when something last began, went on or ended; the last record; the drawing's end.
  double last_event_ = 0;
  double now_ = 0;
  double end_ = 0;
  Drawing drawing_;
};

}  // namespace

Drawing draw_last_step(const std::vector<ProcessRecord>& records, int replica) {
  return StepDrawing(records, replica).draw();
}

}  // namespace pipewright
