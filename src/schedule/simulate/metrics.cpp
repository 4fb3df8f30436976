#include <algorithm>

#include "pipewright/schedule/timeline.h"

namespace pipewright {
namespace {

/// The actions from `at` on that ran as one block: one, or those parts of an
/// OVERLAP_F_B that ran at the same time.
std::size_t block_size(const std::vector<TimedAction>& rank, std::size_t at) {
  std::size_t end = at;
  double until = rank[at].end;
  while (end + 1 < rank.size() && rank[end].action.fused_with_next() &&
         (rank[end + 1].start < until || rank[end + 1].start == rank[at].start)) {
    until = std::max(until, rank[++end].end);
  }
  return end + 1 - at;
}

/// What an action gives back at its end. Without backwards, F itself gives back what it took.
double released(Action action, const StageCosts& stage, bool has_backward) {
  const double held_for_w = stage.held_for_w.value_or(stage.activation);
  switch (action.kind) {
    case Kind::F: return has_backward ? 0 : stage.activation;
    case Kind::B: return stage.activation;
    case Kind::I: return stage.activation - held_for_w;
    case Kind::W: return held_for_w;
    default: return 0;
  }
}

/// Calls `on_change(time, held)` for every change, in order; a block takes at
/// its start and gives back at its end.
template <class OnChange>
void walk_memory(const std::vector<TimedAction>& rank, const Costs& costs, OnChange on_change) {
  const bool has_backward =
      std::ranges::any_of(rank, [](const TimedAction& timed) { return gives_input_grad(timed.action.kind); });
  double held = 0;
  for (std::size_t at = 0; at < rank.size();) {
    const std::size_t end = at + block_size(rank, at);
    for (std::size_t i = at; i < end; ++i) {
      if (rank[i].action.kind != Kind::F) continue;
      held += costs.stages[rank[i].action.stage].activation;
      on_change(rank[i].start, held);
    }
    for (std::size_t i = at; i < end; ++i) {
      const Action action = rank[i].action;
      const double amount = released(action, costs.stages[action.stage], has_backward);
      if (amount == 0) continue;
      held -= amount;
      on_change(rank[i].end, held);
    }
    at = end;
  }
}

RankMetrics measure_rank(const std::vector<TimedAction>& rank, const Costs& costs) {
  RankMetrics metrics;
  double first = 0;
  double last = 0;
  bool started = false;
  for (std::size_t at = 0, size = 0; at < rank.size(); at += size) {
    size = block_size(rank, at);
    if (!is_compute(rank[at].action.kind)) continue;
    double start = rank[at].start;
    double end = rank[at].end;
    for (std::size_t part = at + 1; part < at + size; ++part) {
      start = std::min(start, rank[part].start);
      end = std::max(end, rank[part].end);
    }
    if (!started) first = start;
    started = true;
    last = std::max(last, end);
    metrics.busy += end - start;
  }
  metrics.span = last - first;
  walk_memory(rank, costs, [&](double, double held) {
    metrics.peak_activation = std::max(metrics.peak_activation, held);
  });
  return metrics;
}

}  // namespace

double Metrics::longest_span() const {
  double longest = 0;
  for (const RankMetrics& rank : ranks) longest = std::max(longest, rank.span);
  return longest;
}

double Metrics::peak_activation() const {
  double peak = 0;
  for (const RankMetrics& rank : ranks) peak = std::max(peak, rank.peak_activation);
  return peak;
}

MemoryCurve activation_curve(const std::vector<TimedAction>& rank, const Costs& costs) {
  MemoryCurve curve;
  walk_memory(rank, costs, [&](double time, double held) {
    if (!curve.empty() && curve.back().first == time) {
      curve.back().second = held;
    } else {
      curve.emplace_back(time, held);
    }
  });
  return curve;
}

Metrics measure(const Timeline& timeline, const Costs& costs) {
  Metrics metrics;
  double first = std::numeric_limits<double>::infinity();
  double last = 0;
  for (const auto& rank : timeline.ranks) {
    metrics.ranks.push_back(measure_rank(rank, costs));
    metrics.ideal = std::max(metrics.ideal, metrics.ranks.back().busy);
    for (const TimedAction& timed : rank) {
      if (!is_compute(timed.action.kind)) continue;
      first = std::min(first, timed.start);
      last = std::max(last, timed.end);
    }
  }
  metrics.start = last > first ? first : 0;
  metrics.makespan = last > first ? last - first : 0;
  for (RankMetrics& rank : metrics.ranks) rank.idle = metrics.makespan - rank.busy;
  const auto rate = [&](double whole) { return whole > 0 ? 1 - metrics.ideal / whole : 0; };
  metrics.bubble_rate_makespan = rate(metrics.makespan);
  metrics.bubble_rate_span = rate(metrics.longest_span());
  return metrics;
}

}  // namespace pipewright
