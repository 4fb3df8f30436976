#include "pipewright/schedule/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "pipewright/base/error.h"
#include "pipewright/schedule/csv.h"
#include "pipewright/schedule/generate.h"
#include "pipewright/schedule/lower.h"

namespace pipewright {
namespace {

Metrics simulated(const Schedule& schedule, const Costs& costs) {
  return measure(simulate(schedule, costs), costs);
}
Metrics simulated(const Schedule& schedule) { return simulated(schedule, uniform_costs(schedule.placement)); }

/// Start and end of every action: `0F0 0-1, 0B0 3-5`, a line a rank.
std::string times(const Timeline& timeline) {
  std::ostringstream text;
  for (const auto& rank : timeline.ranks) {
    for (std::size_t i = 0; i < rank.size(); ++i) {
      text << (i == 0 ? "" : ", ") << to_text(rank[i].action) << ' ' << rank[i].start << '-' << rank[i].end;
    }
    text << '\n';
  }
  return text.str();
}

struct Oracle {
  const char* name;
  int stages_per_rank;
  double makespan;
  double longest_span;
  double peak;
};

// p = 8, m = 16, F = I = W = 1.
TEST(Simulation, ReproducesThePublishedTable) {
  for (const Oracle& oracle :
       {Oracle{"GPipe", 1, 69, 69, 16}, Oracle{"1F1B", 1, 69, 69, 8}, Oracle{"LoopedBFS", 2, 58.5, 58.5, 16},
        Oracle{"Interleaved1F1B", 2, 58.5, 58.5, 11.5}, Oracle{"InterleavedZeroBubble", 1, 55, 55, 8},
        Oracle{"InterleavedZeroBubble", 2, 51.5, 51.5, 8}, Oracle{"ZBVZeroBubble", 2, 51.5, 48, 8},
        Oracle{"DualPipeV", 2, 55, 55, 8.5}, Oracle{"ZB-H1", 1, 55, 55, 8}, Oracle{"ZB-H2", 1, 55, 48, 15}}) {
    SCOPED_TRACE(oracle.name);
    const Metrics metrics = simulated(make_schedule(
        {.name = oracle.name, .ranks = 8, .microbatches = 16, .stages_per_rank = oracle.stages_per_rank}));
    EXPECT_EQ(metrics.makespan, oracle.makespan);
    EXPECT_EQ(metrics.ideal, 48);
    EXPECT_EQ(metrics.longest_span(), oracle.longest_span);
    EXPECT_EQ(metrics.peak_activation(), oracle.peak);
    EXPECT_EQ(metrics.bubble_rate_makespan, 1 - 48 / oracle.makespan);
    EXPECT_EQ(metrics.bubble_rate_span, 1 - 48 / oracle.longest_span);
  }
}

// Bubbles in closed form, makespan − ideal, for costs that are not all the same.
TEST(Simulation, FollowsTheClosedFormsOfTheBubble) {
  for (const Rank p : {2, 3, 4, 8}) {
    for (const auto& [f, i, w] :
         {std::array{1.0, 1.0, 1.0}, std::array{2.0, 3.0, 1.0}, std::array{1.0, 2.0, 1.5}}) {
      const auto bubble = [&](const char* name, int v) {
        const Schedule schedule =
            make_schedule({.name = name, .ranks = p, .microbatches = 4 * p, .stages_per_rank = v});
        const Metrics metrics =
            simulated(schedule, uniform_costs(schedule.placement, {.f = f, .i = i, .w = w}));
        return metrics.makespan - metrics.ideal;
      };
      SCOPED_TRACE("p=" + std::to_string(p) + " f=" + std::to_string(f));
      EXPECT_NEAR(bubble("GPipe", 1), (p - 1) * (f + i + w), 1e-9);
      EXPECT_NEAR(bubble("1F1B", 1), (p - 1) * (f + i + w), 1e-9);
      EXPECT_NEAR(bubble("Interleaved1F1B", 2), (p - 1) * (f + i + w) / 2, 1e-9);
      EXPECT_NEAR(bubble("LoopedBFS", 4), (p - 1) * (f + i + w) / 4, 1e-9);
      EXPECT_NEAR(bubble("ZB-H1", 1), (p - 1) * (f + i - std::min(f, w)), 1e-9)
          << "W hides no more than F takes";
    }
  }
}

TEST(Simulation, StartsEachActionAsSoonAsItsDataIsThere) {
  const Schedule schedule = parse_csv("0F0,0B0\n1F0,1B0\n");
  Costs costs = uniform_costs(schedule.placement, {.f = 1, .i = 2, .w = 3, .comm = 0.5});
  EXPECT_EQ(times(simulate(schedule, costs)), "0F0 0-1, 0B0 8-13\n1F0 1.5-2.5, 1B0 2.5-7.5\n");
  costs.stages[1].b = 4;  // a full backward that costs less than its halves
  EXPECT_EQ(times(simulate(schedule, costs)), "0F0 0-1, 0B0 7-12\n1F0 1.5-2.5, 1B0 2.5-6.5\n");
}

TEST(Simulation, TakesUnevenStages) {
  const Schedule schedule = parse_csv("0F0,0F1\n1F0,1F1\n");
  Costs costs = uniform_costs(schedule.placement);
  costs.stages[1].f = 3;
  EXPECT_EQ(times(simulate(schedule, costs)), "0F0 0-1, 0F1 1-2\n1F0 1-4, 1F1 4-7\n");
  EXPECT_EQ(simulated(schedule, costs).ideal, 6);
}

TEST(Simulation, SharesALinkBetweenMessages) {
  const Schedule schedule = parse_csv("0F0,0F1\n1F0,1F1\n");
  Costs costs = uniform_costs(schedule.placement);
  costs.stages[0].message = 8;
  costs.link = {.latency = 0.25, .bandwidth = 4};  // two units on the wire
  EXPECT_EQ(times(simulate(schedule, costs)), "0F0 0-1, 0F1 1-2\n1F0 3.25-4.25, 1F1 5.25-6.25\n");
  costs.links = {{.from = 0, .to = 1, .link = {.latency = 0.5}}};
  EXPECT_EQ(times(simulate(schedule, costs)), "0F0 0-1, 0F1 1-2\n1F0 1.5-2.5, 1F1 2.5-3.5\n");
}

TEST(Simulation, SendsAMessageWhenBothEndsAreReached) {
  const Schedule early = parse_csv("0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F0,1RECV_F1,1F0,1F1\n");
  const Schedule late = parse_csv("0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F0,1F0,1RECV_F1,1F1\n");
  const Costs costs = uniform_costs(early.placement, {.comm = 0.5});
  EXPECT_EQ(times(simulate(early, costs)),
            "0F0 0-1, 0SEND_F0 1-1.5, 0F1 1-2, 0SEND_F1 2-2.5\n"
            "1RECV_F0 0-1.5, 1RECV_F1 0-2.5, 1F0 1.5-2.5, 1F1 2.5-3.5\n");
  EXPECT_EQ(times(simulate(late, costs)),
            "0F0 0-1, 0SEND_F0 1-1.5, 0F1 1-2, 0SEND_F1 2-3\n"
            "1RECV_F0 0-1.5, 1F0 1.5-2.5, 1RECV_F1 2.5-3, 1F1 3-4\n");
}

TEST(Simulation, OfAPlanWithoutCommunicationCostEqualsThatOfItsComputeOrder) {
  for (const ScheduleInfo& info : known_schedules()) {
    SCOPED_TRACE(info.name);
    const Schedule schedule = make_schedule({.name = std::string(info.name), .ranks = 4, .microbatches = 7});
    for (const bool defer : {false, true}) {
      const Schedule plan = lower(schedule, {.defer_receives = defer});
      EXPECT_EQ(simulated(plan).makespan, simulated(schedule).makespan);
      EXPECT_EQ(simulated(plan).peak_activation(), simulated(schedule).peak_activation());
    }
  }
}

TEST(Simulation, ShowsWhatDeferredReceivesCost) {
  const Schedule schedule = make_schedule({.name = "1F1B", .ranks = 4, .microbatches = 8});
  const Costs costs = uniform_costs(schedule.placement, {.comm = 0.3});
  const double early = simulated(lower(schedule), costs).makespan;
  const double late = simulated(lower(schedule, {.defer_receives = true}), costs).makespan;
  EXPECT_LT(simulated(schedule).makespan, early);
  EXPECT_LT(early, late);
}

TEST(Overlap, CostsTheSumTheMaximumOrItsPartsInTurn) {
  const Schedule schedule = parse_csv("0F0,1F0,(0F1;1B0)OVERLAP_F_B,1F1,1B1,0B0,0B1\n");
  Costs costs = uniform_costs(schedule.placement);  // halves: F 0.5, B 1
  EXPECT_EQ(times(simulate(schedule, costs)),
            "0F0 0-0.5, 1F0 0.5-1, 0F1 1-2.5, 1B0 1-2.5, 1F1 2.5-3, 1B1 3-4, 0B0 4-5, 0B1 5-6\n");
  costs.overlap = OverlapCost::Max;
  EXPECT_EQ(times(simulate(schedule, costs)),
            "0F0 0-0.5, 1F0 0.5-1, 0F1 1-2, 1B0 1-2, 1F1 2-2.5, 1B1 2.5-3.5, 0B0 3.5-4.5, 0B1 4.5-5.5\n");
  costs.overlap = OverlapCost::Serial;
  EXPECT_EQ(times(simulate(schedule, costs)),
            "0F0 0-0.5, 1F0 0.5-1, 0F1 1-1.5, 1B0 1.5-2.5, 1F1 2.5-3, 1B1 3-4, 0B0 4-5, 0B1 5-6\n");
}

TEST(Overlap, PartsInTurnShortenDualPipeV) {
  const Schedule schedule = make_schedule({.name = "DualPipeV", .ranks = 8, .microbatches = 16});
  Costs costs = uniform_costs(schedule.placement);
  costs.overlap = OverlapCost::Serial;
  EXPECT_EQ(simulated(schedule, costs).makespan, 51.5);
  EXPECT_EQ(simulated(schedule, costs).peak_activation(), 8.5);
}

TEST(Memory, IsHeldFromForwardToTheEndOfTheWeightGradient) {
  const Schedule schedule = parse_csv("0F0,0F1,0I0,0W0,0B1\n");
  Costs costs = uniform_costs(schedule.placement);
  const Timeline timeline = simulate(schedule, costs);
  using Curve = MemoryCurve;
  EXPECT_EQ(activation_curve(timeline.ranks[0], costs), (Curve{{0, 1}, {1, 2}, {4, 1}, {6, 0}}));
  costs.stages[0].activation = 10;
  costs.stages[0].held_for_w = 4;  // the rest is free after I
  EXPECT_EQ(activation_curve(timeline.ranks[0], costs), (Curve{{0, 10}, {1, 20}, {3, 14}, {4, 10}, {6, 0}}));
  costs.stages[0].held_for_w = 13;  // with gradients that I has made for W
  EXPECT_EQ(activation_curve(timeline.ranks[0], costs), (Curve{{0, 10}, {1, 20}, {3, 23}, {4, 10}, {6, 0}}));
}

TEST(Memory, IsNotHeldWithoutBackwards) {
  const Schedule schedule = parse_csv("0F0,0F1,0F2\n");
  EXPECT_EQ(simulated(schedule).peak_activation(), 1);
}

TEST(CriticalPath, ExplainsTheMakespan) {
  const Schedule schedule = make_schedule({.name = "1F1B", .ranks = 3, .microbatches = 4});
  const Timeline timeline = simulate(schedule, uniform_costs(schedule.placement));
  std::string text;
  double covered = 0;
  for (const auto& [rank, position] : critical_path(timeline)) {
    const TimedAction& timed = timeline.ranks[static_cast<std::size_t>(rank)][position];
    EXPECT_EQ(timed.start, covered);
    covered = timed.end;
    text += to_text(timed.action) + " ";
  }
  EXPECT_EQ(covered, 18);
  EXPECT_EQ(text.substr(0, 12), "0F0 1F0 2F0 ");
}

TEST(CriticalPath, GoesThroughMessages) {
  const Schedule plan = parse_csv("0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F0,1F0,1RECV_F1,1F1\n");
  const Timeline timeline = simulate(plan, uniform_costs(plan.placement, {.comm = 0.5}));
  std::string text;
  for (const auto& [rank, position] : critical_path(timeline)) {
    text += to_text(timeline.ranks[static_cast<std::size_t>(rank)][position].action) + " ";
  }
  EXPECT_EQ(text, "0F0 0SEND_F0 1RECV_F0 1F0 1RECV_F1 1F1 ");
}

TEST(CriticalPath, HasNoGapWithoutCommunication) {
  for (const ScheduleInfo& info : known_schedules()) {
    SCOPED_TRACE(info.name);
    const Schedule schedule = make_schedule({.name = std::string(info.name), .ranks = 4, .microbatches = 9});
    const Costs costs = uniform_costs(schedule.placement, {.f = 1, .i = 2, .w = 4});
    const Timeline timeline = simulate(schedule, costs);
    double covered = 0;
    for (const auto& [rank, position] : critical_path(timeline)) {
      const TimedAction& timed = timeline.ranks[static_cast<std::size_t>(rank)][position];
      EXPECT_EQ(timed.start, covered);
      covered = timed.end;
    }
    EXPECT_EQ(covered, measure(timeline, costs).makespan);
  }
}

TEST(Simulation, RefusesWhatCannotRun) {
  const Schedule schedule = parse_csv("0B0,0F0\n");
  EXPECT_THROW(simulate(schedule, uniform_costs(schedule.placement)), InvalidSchedule);
  EXPECT_THROW(simulate(parse_csv("0F0\n"), uniform_costs({0, 1})), ArgumentError);
  // Sends that come only after what they hold up: no buffer helps.
  const Schedule plan = parse_csv(
      "0F0,0F1,0RECV_B0,0B0,0SEND_F0,0SEND_F1,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
  EXPECT_THROW(simulate(plan, uniform_costs(plan.placement)), InvalidSchedule);
}

TEST(Metrics, CountTheTimeOfPartsThatRanTogetherOnce) {
  // (0F1;1B0)OVERLAP_F_B as a machine runs it: the parts begin and end at different times.
  Timeline timeline{.ranks = {{{.action = make_action(0, Kind::F, 0), .start = 0, .end = 2},
                               {.action = fused(make_action(1, Kind::B, 0)), .start = 3, .end = 6},
                               {.action = make_action(0, Kind::F, 1), .start = 2.5, .end = 5}}},
                    .placement = {0, 0},
                    .microbatches = 2};
  const Metrics metrics = measure(timeline, uniform_costs(timeline.placement));
  EXPECT_DOUBLE_EQ(metrics.ranks[0].busy, 2 + 3.5);
  EXPECT_DOUBLE_EQ(metrics.ranks[0].span, 6);
}

}  // namespace
}  // namespace pipewright
