// Skips: values that a stage hands to another than the next.

#include <gtest/gtest.h>

#include <functional>

#include "pipewright/base/error.h"
#include "pipewright/schedule/csv.h"
#include "pipewright/schedule/deadlock.h"
#include "pipewright/schedule/generate.h"
#include "pipewright/schedule/lower.h"
#include "pipewright/schedule/simulate.h"
#include "pipewright/schedule/validate.h"
#include "schedule/every_schedule.h"
#include "schedule/plan_interpreter.h"
#include "schedule/random_skips.h"

namespace pipewright {
namespace {

Schedule with_skips(Schedule schedule, std::vector<Skip> skips) {
  schedule.skips = std::move(skips);
  return schedule;
}

TEST(Skips, AreSentDirectlyAfterTheNextStagesShare) {
  const Schedule schedule = with_skips(parse_csv("0F0,0B0\n1F0,1B0\n2F0,2B0\n"), {{.from = 0, .to = 2}});
  EXPECT_EQ(to_csv(lower(schedule)),
            "0UNSHARD,0F0,0SEND_F0,0SEND_F0:2,0RECV_B0:2,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n"
            "1UNSHARD,1RECV_F0,1F0,1SEND_F0,1RECV_B0,1B0,1SEND_B0,1REDUCE_GRAD,1RESHARD\n"
            "2UNSHARD,2RECV_F0:0,2RECV_F0,2F0,2B0,2SEND_B0,2SEND_B0:0,2REDUCE_GRAD,2RESHARD\n");
}

TEST(Skips, OfOneRankNeedNoMessages) {
  const Schedule plain = make_schedule({.name = "Interleaved1F1B", .ranks = 2, .microbatches = 2});
  EXPECT_EQ(lower(with_skips(plain, {{.from = 0, .to = 2}})).ranks, lower(plain).ranks);
}

TEST(Skips, AreReadFromTheMessagesOfAPlan) {
  const Schedule plan = lower(with_skips(make_schedule({.name = "1F1B", .ranks = 4, .microbatches = 3}),
                                         {{.from = 0, .to = 2}, {.from = 0, .to = 3}, {.from = 1, .to = 3}}));
  EXPECT_EQ(parse_csv(to_csv(plan)), plan);
}

std::string first_finding(const Schedule& schedule, Format format) {
  const auto found = validate(schedule, format);
  return found.empty() ? "" : to_text(found.front());
}

TEST(Skips, ThatCannotBeAreRefused) {
  const Schedule schedule = make_schedule({.name = "GPipe", .ranks = 3, .microbatches = 1});
  const auto refusal = [&](std::vector<Skip> skips) {
    return first_finding(with_skips(schedule, std::move(skips)), Format::ComputeOnly);
  };
  EXPECT_EQ(refusal({{.from = 0, .to = 2}}), "");
  EXPECT_EQ(refusal({{.from = 0, .to = 3}}),
            "[skips] the skip from stage 0 to 3 names a stage that is not there");
  EXPECT_EQ(refusal({{.from = -1, .to = 2}}),
            "[skips] the skip from stage -1 to 2 names a stage that is not there");
  EXPECT_EQ(refusal({{.from = 0, .to = 1}}), "[skips] the skip from stage 0 to 1 skips no stage");
  EXPECT_EQ(refusal({{.from = 2, .to = 0}}), "[skips] the skip from stage 2 to 0 skips no stage");
  EXPECT_EQ(refusal({{.from = 0, .to = 2}, {.from = 0, .to = 2}}),
            "[skips] the skip from stage 0 to 2 is listed twice or out of order");
}

TEST(Skips, ReachAsFarAsAnActionCanSay) {
  const Schedule schedule = make_schedule({.name = "GPipe", .ranks = 300, .microbatches = 1});
  EXPECT_EQ(first_finding(lower(with_skips(schedule, {{.from = 1, .to = 256}})), Format::Lowered), "");
  EXPECT_EQ(first_finding(with_skips(schedule, {{.from = 1, .to = 257}}), Format::ComputeOnly),
            "[skips] the skip from stage 1 to 257 is longer than 255 stages");
}

TEST(Skips, MustBeThoseOfTheMessages) {
  Schedule plan = lower(
      with_skips(make_schedule({.name = "GPipe", .ranks = 3, .microbatches = 2}), {{.from = 0, .to = 2}}));
  EXPECT_EQ(first_finding(plan, Format::Lowered), "");
  EXPECT_EQ(first_finding(with_skips(plan, {}), Format::Lowered),
            "[skips] rank 0 step 3: 0SEND_F0:2 takes a skip that is not there");
  std::erase_if(plan.ranks[2], [](Action action) { return action.skipped() > 0 && action.microbatch == 1; });
  EXPECT_EQ(first_finding(plan, Format::Lowered),
            "[skips] rank 2: the skip from stage 0 to 2 has 1 RECV_F, and needs 2");
  std::erase_if(plan.ranks[0], [](Action action) { return action.skipped() > 0; });
  std::erase_if(plan.ranks[2], [](Action action) { return action.skipped() > 0; });
  EXPECT_EQ(first_finding(plan, Format::Lowered),
            "[skips] rank 0: the skip from stage 0 to 2 has 0 SEND_F, and needs 2");
}

TEST(Skips, AreTakenByMessagesOnly) {
  Schedule schedule = parse_csv("0F0\n1F0\n2F0\n");
  schedule.ranks[2][0].link = 1;
  EXPECT_NE(first_finding(schedule, Format::ComputeOnly).find("takes a skip that is not there"),
            std::string::npos);
}

TEST(Skips, CanDeadlockToo) {
  // Rank 0 sends to 2 first, which listens to 1 first, which listens to 0.
  EXPECT_EQ(to_text(prove_deadlock_free(parse_csv("0F0,0SEND_F0:2,0SEND_F0\n"
                                                  "1RECV_F0,1F0,1SEND_F0\n"
                                                  "2RECV_F0,2RECV_F0:0,2F0\n"))),
            "rank 0 step 1: 0SEND_F0:2 waits for 2RECV_F0:0 of rank 2\n"
            "rank 2 step 0: 2RECV_F0 waits for 1SEND_F0 of rank 1\n"
            "rank 1 step 0: 1RECV_F0 waits for 0SEND_F0 of rank 0");
}

TEST(Skips, TakeTheirTimeOnTheirOwnLink) {
  const Schedule schedule = with_skips(parse_csv("0F0\n1F0\n2F0\n"), {{.from = 0, .to = 2}});
  Costs costs = uniform_costs(schedule.placement);
  costs.link.latency = 1;
  costs.links.push_back({.from = 0, .to = 2, .link = {.latency = 10}});
  EXPECT_EQ(simulate(schedule, costs).ranks[2].back().start, 11);
  const Timeline timeline = simulate(lower(schedule), costs);
  EXPECT_EQ(measure(timeline, costs).makespan, 12);
  std::string path;
  for (const auto& [rank, position] : critical_path(timeline)) {
    path += to_text(timeline.ranks[static_cast<std::size_t>(rank)][position].action) + " ";
  }
  EXPECT_EQ(path, "0F0 0SEND_F0:2 2RECV_F0:0 2F0 ");
}

TEST(Skips, HaveTheSizeOfWhatTheirFirstStagePutsOut) {
  const Schedule schedule = with_skips(parse_csv("0F0,0B0\n1F0,1B0\n2F0,2B0\n"), {{.from = 0, .to = 2}});
  Costs costs = uniform_costs(schedule.placement);
  costs.stages[0].message = 6;
  costs.link.bandwidth = 2;
  const Timeline timeline = simulate(lower(schedule), costs);
  for (const auto& rank : timeline.ranks) {
    for (const TimedAction& timed : rank) {
      if (timed.action.skipped() == 0) continue;
      EXPECT_GE(timed.end - timed.start, 3) << to_text(timed.action);
    }
  }
}

/// Calls `judge` with schedules of all sizes, each with skips at random.
void for_each_size(const ScheduleInfo& info, const std::function<void(const Schedule&)>& judge) {
  std::mt19937 random(7);
  for (const Rank ranks : {1, 2, 3, 4, 6}) {
    for (const Microbatch microbatches : {1, 2, 5, 8}) {
      for (int stages = info.min_stages_per_rank; stages <= std::min(info.max_stages_per_rank, 4); ++stages) {
        const Schedule schedule = make_schedule({.name = std::string(info.name),
                                                 .ranks = ranks,
                                                 .microbatches = microbatches,
                                                 .stages_per_rank = stages});
        SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(microbatches) + " microbatches, " +
                     std::to_string(stages) + " stages a rank");
        judge(with_skips(schedule, random_skips(schedule.stage_count(), random)));
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

class RandomSkips : public testing::TestWithParam<ScheduleInfo> {};
INSTANTIATE_TEST_SUITE_P(EverySchedule, RandomSkips, every_schedule(), schedule_test_name);

TEST_P(RandomSkips, GiveAPlanThatIsProvenAndComputesTheRightThing) {
  for_each_size(GetParam(), [](const Schedule& schedule) {
    for (const LowerOptions& options :
         {LowerOptions{}, LowerOptions{.merge_backward = true}, LowerOptions{.defer_receives = true}}) {
      const Schedule plan = lower(schedule, options);
      EXPECT_EQ(first_finding(plan, Format::Lowered), "");
      EXPECT_EQ(to_text(prove_deadlock_free(plan)), "free of deadlock");
      EXPECT_EQ(interpret(plan, plan), Outcome::Right);
    }
  });
}

TEST_P(RandomSkips, LeaveTheRestOfThePlanAsItIs) {
  for_each_size(GetParam(), [](const Schedule& schedule) {
    Schedule plan = lower(schedule);
    for (auto& actions : plan.ranks) {
      std::erase_if(actions, [](Action action) { return action.skipped() > 0; });
    }
    EXPECT_EQ(plan.ranks, lower(with_skips(schedule, {})).ranks);
  });
}

/// By kind of compute action (B and I are one), stage and microbatch.
std::map<std::tuple<Kind, Stage, Microbatch>, TimedAction> compute_times(const Timeline& timeline) {
  std::map<std::tuple<Kind, Stage, Microbatch>, TimedAction> times;
  for (const auto& rank : timeline.ranks) {
    for (const TimedAction& timed : rank) {
      const Kind kind = timed.action.kind == Kind::I ? Kind::B : timed.action.kind;
      if (is_compute(kind)) {
        times[{kind, timed.action.stage, static_cast<Microbatch>(timed.action.microbatch)}] = timed;
      }
    }
  }
  return times;
}

TEST_P(RandomSkips, BringTheirDataBeforeItIsUsed) {
  constexpr double kLatency = 7;
  for_each_size(GetParam(), [](const Schedule& schedule) {
    Costs costs = uniform_costs(schedule.placement);
    costs.link.latency = kLatency;
    for (const Schedule& each : {schedule, lower(schedule), lower(schedule, {.defer_receives = true})}) {
      const Timeline timeline = simulate(each, costs);
      EXPECT_FALSE(critical_path(timeline).empty());
      auto times = compute_times(timeline);
      for (const auto& [from, to] : schedule.skips) {
        const bool crosses = schedule.placement[static_cast<std::size_t>(from)] !=
                             schedule.placement[static_cast<std::size_t>(to)];
        const double way = crosses ? kLatency : 0;
        for (Microbatch j = 0; j < schedule.microbatches; ++j) {
          EXPECT_GE((times.at({Kind::F, to, j}).start), (times.at({Kind::F, from, j}).end + way));
          if (!times.contains({Kind::B, to, j})) continue;
          EXPECT_GE((times.at({Kind::B, from, j}).start), (times.at({Kind::B, to, j}).end + way));
        }
      }
    }
  });
}

}  // namespace
}  // namespace pipewright
