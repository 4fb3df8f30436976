#include "pipewright/schedule/generate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "pipewright/base/error.h"
#include "pipewright/schedule/csv.h"
#include "pipewright/schedule/deadlock.h"
#include "pipewright/schedule/lower.h"
#include "pipewright/schedule/simulate.h"
#include "pipewright/schedule/validate.h"
#include "schedule/every_schedule.h"

namespace pipewright {
namespace {

std::string csv(const std::string& name, Rank ranks, Microbatch microbatches, int stages_per_rank = 0) {
  return to_csv(make_schedule(
      {.name = name, .ranks = ranks, .microbatches = microbatches, .stages_per_rank = stages_per_rank}));
}

Metrics metrics(const Schedule& schedule) {
  const Costs costs = uniform_costs(schedule.placement);
  return measure(simulate(schedule, costs), costs);
}

double makespan(const ScheduleSpec& spec) { return metrics(make_schedule(spec)).makespan; }

TEST(Gpipe, RunsAllForwardsBeforeAnyBackward) {
  EXPECT_EQ(csv("GPipe", 2, 3),
            "0F0,0F1,0F2,,,0B0,0B1,0B2\n"
            ",1F0,1F1,1F2,1B0,1B1,1B2\n");
}

TEST(OneFOneB, AlternatesAfterItsWarmUp) {
  EXPECT_EQ(csv("1F1B", 3, 4),
            "0F0,0F1,0F2,,,0B0,0F3,0B1,,0B2,,0B3\n"
            ",1F0,1F1,,1B0,1F2,1B1,1F3,1B2,,1B3\n"
            ",,2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3\n");
}

TEST(OneFOneB, TakesFewerMicrobatchesThanRanks) {
  EXPECT_EQ(csv("1F1B", 3, 1), "0F0,,,,,0B0\n,1F0,,,1B0\n,,2F0,2B0\n");
}

TEST(LoopedBfs, RunsEachStageForAllMicrobatches) {
  EXPECT_EQ(csv("LoopedBFS", 2, 2, 2),
            "0F0,0F1,2F0,2F1,,,2B1,2B0,0B1,0B0\n"
            ",1F0,1F1,3F0,3F1,3B1,3B0,1B1,1B0\n");
}

TEST(ZbH1, DelaysTheWeightGradientByTheRank) {
  EXPECT_EQ(csv("ZB-H1", 2, 3),
            "0F0,0F1,,0I0,0W0,0F2,0I1,0W1,0I2,0W2\n"
            ",1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1W2\n");
}

TEST(DualPipeV, OverlapsAForwardWithABackward) {
  const std::string text = csv("DualPipeV", 2, 4);
  EXPECT_NE(text.find("(0F3;3B1)OVERLAP_F_B"), std::string::npos) << text;
}

TEST(DualPipeV, LeavesThePartThatExistsWhenMicrobatchesAreFew) {
  const Schedule schedule = make_schedule({.name = "DualPipeV", .ranks = 4, .microbatches = 3});
  EXPECT_TRUE(validate(schedule, Format::ComputeOnly).empty());
}

TEST(ForwardOnly, RunsTheFurthestStageFirstInAV) {
  const Schedule schedule = make_schedule({.name = "ForwardOnly",
                                           .ranks = 2,
                                           .microbatches = 3,
                                           .stages_per_rank = 2,
                                           .placement = v_placement(2, 2)});
  EXPECT_EQ(to_csv(schedule), "0F0,0F1,0F2,3F0,,3F1,,3F2\n,1F0,2F0,1F1,2F1,1F2,2F2\n");
}

TEST(ForwardOnly, TakesAnyPlacement) {
  const Placement placement = {1, 0, 0, 1, 2, 2, 1, 0, 2};
  const Schedule schedule = make_schedule(
      {.name = "forward-only", .ranks = 3, .microbatches = 5, .stages_per_rank = 3, .placement = placement});
  EXPECT_EQ(schedule.placement, placement);
  EXPECT_TRUE(validate(schedule, Format::ComputeOnly).empty());
  EXPECT_TRUE(prove_deadlock_free(lower(schedule)).free());
}

TEST(ForwardOnly, IsAsShortAsInterleavingInALoop) {
  EXPECT_EQ(makespan({.name = "ForwardOnly", .ranks = 4, .microbatches = 8, .stages_per_rank = 2}),
            8 + 3 * 0.5);
}

TEST(ZbH2, HasNoBubbleWithinItsSpan) {
  for (const Rank p : {1, 2, 3, 5, 8}) {
    for (const Microbatch m : {2 * p - 1, 2 * p, 4 * p}) {
      const Metrics result = metrics(make_schedule({.name = "ZB-H2", .ranks = p, .microbatches = m}));
      EXPECT_EQ(result.longest_span(), 3 * m) << "p=" << p << " m=" << m;
      EXPECT_EQ(result.peak_activation(), 2 * p - 1) << "p=" << p << " m=" << m;
    }
  }
}

// Makespan in half stages beyond 6m, for m well above p.
TEST(VHalf, ReachesItsPublishedLengthAtHalfTheMemory) {
  for (Rank p = 3; p <= 16; ++p) {
    const Microbatch m = 3 * p + 2;
    const Metrics result = metrics(make_schedule({.name = "V-Half", .ranks = p, .microbatches = m}));
    EXPECT_EQ(2 * result.makespan - 6 * m, p % 2 == 0 ? 3 * p - 7 : 3 * p - 4) << "p=" << p;
    EXPECT_LE(result.peak_activation(), (p + 2) / 2) << "p=" << p;
  }
}

TEST(VMin, ReachesItsPublishedLengthAtAThirdOfTheMemory) {
  for (Rank p = 3; p <= 16; ++p) {
    const Microbatch m = 3 * p + 2;
    const Metrics result = metrics(make_schedule({.name = "V-Min", .ranks = p, .microbatches = m}));
    EXPECT_EQ(2 * result.makespan - 6 * m, p % 3 == 0 ? 4 * p - 7 : 4 * p - 5) << "p=" << p;
    EXPECT_LE(result.peak_activation(), (p + 4) / 3) << "p=" << p;
  }
}

// The other schedules have the cells of the common format, which aligns their warm-up alone.
TEST(Schedules, HaveTimeStepsAsColumns) {
  for (const char* name : {"GPipe", "1F1B", "ZB-H1", "ZB-H2", "V-Half", "V-Min", "ForwardOnly"}) {
    SCOPED_TRACE(name);
    const Schedule schedule = make_schedule({.name = name, .ranks = 4, .microbatches = 7});
    std::map<std::pair<int, std::uint32_t>, std::size_t> forward_step;
    for (const auto& actions : schedule.ranks) {
      for (std::size_t step = 0; step < actions.size(); ++step) {
        const Action action = actions[step];
        if (action.kind == Kind::F) forward_step[{action.stage, action.microbatch}] = step;
      }
    }
    for (const auto& [forward, step] : forward_step) {
      const auto& [stage, microbatch] = forward;
      if (stage == 0) continue;
      EXPECT_GT(step, forward_step.at({stage - 1, microbatch}));
    }
  }
}

TEST(Schedules, AreFoundWhateverTheCaseAndDashes) {
  EXPECT_EQ(find_schedule("zbvzerobubble").name, "ZBVZeroBubble");
  EXPECT_EQ(find_schedule("ZBH1").name, "ZB-H1");
  EXPECT_EQ(find_schedule("forward_only").name, "ForwardOnly");
}

std::string error_of(const ScheduleSpec& spec) {
  try {
    make_schedule(spec);
  } catch (const ArgumentError& error) {
    return error.what();
  }
  return "";
}

TEST(Schedules, NameTheNearOnesWhenUnknown) {
  EXPECT_EQ(error_of({.name = "1f2b"}), "unknown schedule '1f2b'; did you mean one of: 1F1B?");
  EXPECT_EQ(error_of({.name = "interleaved"}),
            "unknown schedule 'interleaved'; did you mean one of: Interleaved1F1B, InterleavedZeroBubble?");
  EXPECT_NE(error_of({.name = "zzzzzzzz"}).find("GPipe, 1F1B"), std::string::npos);
  EXPECT_NE(error_of({.name = std::string(1 << 20, 'x')}), "");
}

TEST(Schedules, RefuseSizesBeyondTheirLimits) {
  EXPECT_EQ(error_of({.name = "GPipe", .ranks = 0}), "the number of ranks must be from 1 to 65536, not 0");
  EXPECT_EQ(error_of({.name = "GPipe", .ranks = 2, .microbatches = 0}),
            "the number of microbatches must be from 1 to 16777216, not 0");
  EXPECT_NE(error_of({.name = "GPipe", .stages_per_rank = 2}).find("exactly 1 stage a rank"),
            std::string::npos);
  EXPECT_NE(error_of({.name = "V-Min", .stages_per_rank = 3}).find("exactly 2 stages a rank"),
            std::string::npos);
  EXPECT_NE(error_of({.name = "LoopedBFS", .ranks = 65536, .stages_per_rank = 2}), "");
  EXPECT_NE(error_of({.name = "GPipe", .ranks = 65536, .microbatches = 16777216}), "");
  EXPECT_NE(error_of({.name = "GPipe", .ranks = 2, .placement = {0, 1}}).find("own placement"),
            std::string::npos);
  EXPECT_NE(error_of({.name = "ForwardOnly", .ranks = 2, .placement = {0, 2}}).find("placement"),
            std::string::npos);
}

TEST(Schedules, OfForwardsAloneTakeStagesInAnyNumberOnARank) {
  const Schedule schedule =
      make_schedule({.name = "ForwardOnly", .ranks = 2, .microbatches = 3, .placement = {0, 1, 0}});
  EXPECT_TRUE(validate(schedule, Format::ComputeOnly).empty());
  EXPECT_EQ(schedule.placement, (Placement{0, 1, 0}));
  EXPECT_EQ(to_csv(schedule), "0F0,0F1,2F0,2F1,0F2,,2F2\n,1F0,1F1,,,1F2\n");
}

/// Every schedule over many sizes.
class EverySchedule : public testing::TestWithParam<ScheduleInfo> {
 protected:
  template <class Check>
  void for_sizes(Check check) const {
    const ScheduleInfo& info = GetParam();
    for (Rank p = 1; p <= 9; ++p) {
      for (const Microbatch m : {1, 2, 3, 4, 5, 6, 7, 9, 11, 13, 16, 19}) {
        for (int v = info.min_stages_per_rank; v <= std::min(info.max_stages_per_rank, 4); ++v) {
          SCOPED_TRACE("p=" + std::to_string(p) + " m=" + std::to_string(m) + " v=" + std::to_string(v));
          check(ScheduleSpec{
              .name = std::string(info.name), .ranks = p, .microbatches = m, .stages_per_rank = v});
          if (HasFailure()) return;
        }
      }
    }
  }
};

TEST_P(EverySchedule, IsValidAndItsPlansAreFreeOfDeadlock) {
  for_sizes([](const ScheduleSpec& spec) {
    const Schedule schedule = make_schedule(spec);
    const auto found = validate(schedule, Format::ComputeOnly);
    ASSERT_TRUE(found.empty()) << to_text(found.front());
    for (const bool defer : {false, true}) {
      for (const int active : {1, 3}) {
        const Schedule plan = lower(schedule, {.max_active_stages = active, .defer_receives = defer});
        const auto wrong = validate(plan, Format::Lowered);
        ASSERT_TRUE(wrong.empty()) << to_text(wrong.front());
        const DeadlockVerdict verdict = prove_deadlock_free(plan);
        ASSERT_TRUE(verdict.free()) << to_text(verdict);
      }
    }
  });
}

TEST_P(EverySchedule, KeepsItsTextThroughCsv) {
  for_sizes([](const ScheduleSpec& spec) {
    const Schedule schedule = make_schedule(spec);
    ASSERT_EQ(parse_csv(to_csv(schedule)), schedule);
    const Schedule plan = lower(schedule);
    ASSERT_EQ(parse_csv(to_csv(plan)), plan);
  });
}

// What the reference refuses is made from the next count it takes, so more
// microbatches never take less time.
TEST_P(EverySchedule, IsNoLongerThanWithOneMicrobatchMore) {
  for_sizes([](const ScheduleSpec& spec) {
    ScheduleSpec more = spec;
    ++more.microbatches;
    ASSERT_LE(makespan(spec), makespan(more));
  });
}

INSTANTIATE_TEST_SUITE_P(All, EverySchedule, every_schedule(), schedule_test_name);

}  // namespace
}  // namespace pipewright
