#include "pipewright/schedule/simulate.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "pipewright/base/error.h"
#include "pipewright/schedule/validate.h"
#include "schedule/ir/channels.h"
#include "schedule/ir/replay.h"

namespace pipewright {
namespace {

double duration(Kind kind, const StageCosts& costs) {
  switch (kind) {
    case Kind::F: return costs.f;
    case Kind::B: return costs.full_backward();
    case Kind::I: return costs.i;
    case Kind::W: return costs.w;
    default: return 0;
  }
}

class Simulation {
 public:
  Simulation(const Schedule& schedule, const Costs& costs, bool lowered)
      : schedule_(schedule),
        costs_(costs),
        lowered_(lowered),
        microbatches_(static_cast<std::size_t>(schedule.microbatches)),
        edges_(schedule),
        channels_(schedule),
        links_(channels_.size(), costs.link),
        link_free_(channels_.size()),
        clock_(schedule.ranks.size()) {
    const std::size_t pairs = edges_.size() * microbatches_;
    activation_at_.resize(pairs, kNotYet);
    gradient_at_.resize(pairs, kNotYet);
    if (lowered) {
      activation_posted_.resize(pairs, kNotYet);
      gradient_posted_.resize(pairs, kNotYet);
    }
    for (const auto& [from, to, link] : costs.links) {
      const std::size_t channel = channels_.between(from, to);
      if (channel < channels_.size()) links_[channel] = link;
    }
  }

  Timeline run() {
    timeline_.placement = schedule_.placement;
    timeline_.microbatches = schedule_.microbatches;
    timeline_.skips = schedule_.skips;
    for (const auto& actions : schedule_.ranks) {
      timeline_.ranks.emplace_back().reserve(actions.size());
    }
    Replay replay(schedule_, lowered_);
    const bool ended = replay.run([this](Rank rank, std::size_t, std::span<const Action> cell) {
      if (cell[0].kind == Kind::Bubble) return;
      if (costs_.overlap == OverlapCost::Serial || cell.size() == 1) {
        for (const Action action : cell) run_block(rank, {&action, 1});
      } else {
        run_block(rank, cell);
      }
    });
    if (!ended) {  // validation leaves one cause: sends that come too late in a circle of ranks
      throw InvalidSchedule(
          "[simulate] the plan deadlocks; 'pipewright validate --lowered' names the circle");
    }
    if (lowered_) complete_messages();
    return std::move(timeline_);
  }

 private:
  static constexpr double kNotYet = -1;

  /// Runs actions that start and end together.
  void run_block(Rank rank, std::span<const Action> block) {
    double& clock = clock_[static_cast<std::size_t>(rank)];
    double start = clock;
    double total = 0;
    for (const Action action : block) {
      start = std::max(start, data_at(action));
      const double cost = duration(action.kind, costs_.stages[action.stage]);
      total = costs_.overlap == OverlapCost::Max ? std::max(total, cost) : total + cost;
    }
    clock = start + total;
    for (const Action action : block) {
      timeline_.ranks[static_cast<std::size_t>(rank)].push_back({action, start, clock});
      publish(rank, action, clock);
    }
  }

  std::size_t pair(std::size_t edge, Action action) const { return edge * microbatches_ + action.microbatch; }

  /// When all that `action` needs from other stages is on its rank.
  double data_at(Action action) const {
    const bool forward = action.kind == Kind::F;
    if (!forward && !gives_input_grad(action.kind)) return 0;
    const auto& at = forward ? activation_at_ : gradient_at_;
    double latest = 0;
    edges_.for_each(action.stage, forward ? Edges::To::Earlier : Edges::To::Later,
                    [&](Stage, std::size_t edge) { latest = std::max(latest, at[pair(edge, action)]); });
    return latest;
  }

  void publish(Rank rank, Action action, double now) {
    if (is_message(action.kind)) return post(action, now);
    const bool forward = action.kind == Kind::F;
    if (!forward && !gives_input_grad(action.kind)) return;
    edges_.for_each(action.stage, forward ? Edges::To::Later : Edges::To::Earlier,
                    [&](Stage to, std::size_t edge) { give(rank, action, to, edge, now); });
  }

  /// `action` has computed something for stage `to`.
  void give(Rank rank, Action action, Stage to, std::size_t edge, double now) {
    const bool forward = action.kind == Kind::F;
    double& at = (forward ? activation_at_ : gradient_at_)[pair(edge, action)];
    if (schedule_.placement[static_cast<std::size_t>(to)] == rank) {
      at = now;
    } else if (!lowered_) {
      at = transfer(make_message(action.stage, forward ? Kind::SendF : Kind::SendB,
                                 static_cast<Microbatch>(action.microbatch), to),
                    now);
    }
  }

  /// One end of a message has been reached; when both have, it sets out.
  void post(Action message, double now) {
    const bool forward = message.kind == Kind::SendF || message.kind == Kind::RecvF;
    const std::size_t at = pair(edges_.of(message), message);
    double& posted = (forward ? activation_posted_ : gradient_posted_)[at];
    if (posted == kNotYet) {
      posted = now;
      return;
    }
    const Action send = is_send(message.kind) ? message : counterpart(message);
    (forward ? activation_at_ : gradient_at_)[at] = transfer(send, std::max(posted, now));
  }

  double transfer(Action send, double ready) {
    const std::size_t channel = channels_.of(send);
    const LinkCosts& link = links_[channel];
    // The size is that of the tensor that the earlier stage puts out.
    const auto earlier = static_cast<std::size_t>(send.kind == Kind::SendF ? send.stage : peer_stage(send));
    const double occupied = costs_.stages[earlier].message / link.bandwidth;
    link_free_[channel] = std::max(ready, link_free_[channel]) + occupied;
    return link_free_[channel] + link.latency;
  }

  /// The arrival of a message is known only after both of its ends were visited.
  void complete_messages() {
    for (auto& rank : timeline_.ranks) {
      for (TimedAction& timed : rank) {
        const Action action = timed.action;
        if (!is_message(action.kind)) continue;
        const bool forward = action.kind == Kind::SendF || action.kind == Kind::RecvF;
        timed.end = (forward ? activation_at_ : gradient_at_)[pair(edges_.of(action), action)];
      }
    }
  }

  const Schedule& schedule_;
  const Costs& costs_;
  bool lowered_;
  std::size_t microbatches_;
  Edges edges_;
  Channels channels_;
  std::vector<LinkCosts> links_;
  std::vector<double> link_free_;
  std::vector<double> clock_;
  // By edge and microbatch: when its data is with the consumer, and when the
  // first end of its message was reached.
  std::vector<double> activation_at_;
  std::vector<double> gradient_at_;
  std::vector<double> activation_posted_;
  std::vector<double> gradient_posted_;
  Timeline timeline_;
};

}  // namespace

Timeline simulate(const Schedule& schedule, const Costs& costs) {
  if (costs.stages.size() != schedule.placement.size()) {
    throw ArgumentError("the costs are for " + std::to_string(costs.stages.size()) +
                        " stages, the schedule has " + std::to_string(schedule.placement.size()));
  }
  const bool lowered = is_lowered(schedule);
  const auto found = validate(schedule, lowered ? Format::Lowered : Format::ComputeOnly);
  if (!found.empty()) throw InvalidSchedule("[simulate] " + to_text(found.front()));
  return Simulation(schedule, costs, lowered).run();
}

}  // namespace pipewright
