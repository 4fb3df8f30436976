#include "pipewright/schedule/validate.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "pipewright/schedule/csv.h"
#include "pipewright/schedule/generate.h"
#include "pipewright/schedule/lower.h"

namespace pipewright {
namespace {

/// The diagnostics, a line each.
std::string judge(const Schedule& schedule, Format format) {
  std::string text;
  for (const Diagnostic& diagnostic : validate(schedule, format)) text += to_text(diagnostic) + "\n";
  return text;
}
std::string judge(const std::string& csv, Format format = Format::ComputeOnly) {
  return judge(parse_csv(csv), format);
}

TEST(Validation, AcceptsAValidSchedule) {
  EXPECT_EQ(judge("0F0,,,0B0\n,1F0,1B0\n"), "");
  EXPECT_EQ(judge("0F0,0F1\n,1F0,1F1\n"), "");
}

TEST(FormatRule, KeepsMessagesOutOfComputeOnlySchedules) {
  EXPECT_EQ(judge("0F0,0SEND_F0\n1F0\n"),
            "[format] rank 0 step 1: 0SEND_F0 in a compute-only schedule (is it lowered?)\n");
}

TEST(FormatRule, KeepsBubblesOutOfPlans) {
  EXPECT_EQ(judge("0F0,,0B0\n", Format::Lowered),
            "[format] rank 0 step 1: an empty cell in a lowered schedule\n");
}

TEST(FormatRule, RefusesAFuseMarkWithoutAPair) {
  Schedule schedule = parse_csv("0F0,0F1,0B0,0B1\n");
  for (const std::size_t at : {0, 3}) schedule.ranks[0][at] = fused(schedule.ranks[0][at]);
  EXPECT_EQ(judge(schedule, Format::ComputeOnly),
            "[format] rank 0 step 0: an OVERLAP_F_B has one F and one B or I, not (0F0;0F1)OVERLAP_F_B\n"
            "[format] rank 0 step 2: an OVERLAP_F_B has one F and one B or I, not 0B1\n");
}

TEST(PlacementRule, KeepsAStageOnOneRank) {
  EXPECT_EQ(judge("0F0,0B0\n1F0,1B0,0F1\n"), "[placement] rank 1 step 2: 0F1, but stage 0 is on rank 0\n");
}

TEST(PlacementRule, WantsEveryStageAndRankInUse) {
  EXPECT_EQ(judge("0F0,0B0\n\n2F0,2B0\n"),
            "[placement] stage 1 is on no rank\n[placement] rank 1: no stage and no work\n");
  EXPECT_EQ(judge(",,\n"), "[placement] there are no actions at all\n");
}

TEST(PlacementRule, KeepsIndicesWithinTheCounts) {
  Schedule schedule = parse_csv("0F0,0B0\n");
  schedule.ranks[0].push_back(make_action(7, Kind::F, 0));
  schedule.ranks[0].push_back(make_action(0, Kind::F, 9));
  EXPECT_EQ(judge(schedule, Format::ComputeOnly),
            "[placement] rank 0 step 2: 7F0 is beyond the schedule's 1 stages and 1 microbatches\n"
            "[placement] rank 0 step 3: 0F9 is beyond the schedule's 1 stages and 1 microbatches\n");
}

TEST(CountsRule, NamesWhatIsMissingOrThereTwice) {
  EXPECT_EQ(judge("0F0,0F2,0F2,0B0,0B1,0B2\n"),
            "[split] rank 0 step 2: 0F2 is there twice\n[split] rank 0: 0F1 is missing\n")
      << "the totals fit: what is there twice hides what is missing";
  EXPECT_EQ(judge("0F0,0F1,0B0\n"),
            "[counts] rank 0: stage 0 has no backward (B or I) of microbatch 1\n"
            "[counts] rank 0: stage 0 has no weight gradient (B or W) of microbatch 1\n");
}

TEST(CountsRule, DoesNotAllocateForIndicesThatOnlyAFileNames) {
  // Two cells that speak of 65536 stages and 16777216 microbatches.
  const std::string found = judge("0F0,65535F16777215\n");
  EXPECT_NE(found.find("stage 1 is on no rank"), std::string::npos);
  std::string chain;
  for (int stage = 0; stage < 100; ++stage) chain += std::to_string(stage) + "F16777215,";
  chain.back() = '\n';
  EXPECT_NE(judge(chain).find("stage 0 has no forward (F) of microbatch 0"), std::string::npos);
}

TEST(SplitRule, TakesEitherBOrIAndW) {
  EXPECT_EQ(judge("0F0,0F1,0B0,0I1,0W1\n"), "");
  EXPECT_EQ(judge("0F0,0F1,0B0,0I0,0W0\n"),
            "[split] rank 0 step 2: 0B0 together with 0I0\n[split] rank 0: 0B1 is missing\n");
  EXPECT_EQ(judge("0F0,0F1,0B0,0I0,0W1\n"),
            "[split] rank 0 step 2: 0B0 together with 0I0\n[split] rank 0 step 4: 0W1 without 0I1\n");
}

TEST(OrderRule, WantsForwardThenBackwardThenWeights) {
  EXPECT_EQ(judge("0B0,0F0\n"), "[order] rank 0 step 0: 0B0 before 0F0\n");
  EXPECT_EQ(judge("0F0,0W0,0I0\n"), "[order] rank 0 step 1: 0W0 before 0I0\n");
  EXPECT_EQ(judge("0F0,0F1,(0F2;0B2)OVERLAP_F_B,0B0,0B1\n"),
            "[order] rank 0 step 2: 0B2 at the same time as 0F2\n");
}

TEST(DependenciesRule, FindsCirclesOfWaitsAcrossRanks) {
  EXPECT_EQ(judge("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n"),
            "[dependencies] rank 0 step 1: 0B0 needs 1B0, but rank 1 is held at step 0 by 1F1\n"
            "[dependencies] rank 1 step 0: 1F1 needs 0F1, but rank 0 is held at step 1 by 0B0\n");
}

TEST(DependenciesRule, FindsWrongOrderOnOneRank) {
  EXPECT_EQ(judge("1F0,0F0\n"),
            "[dependencies] rank 0 step 0: 1F0 needs 0F0, which comes later on this rank\n");
  EXPECT_EQ(judge("1F0,0F0\n", Format::Lowered),
            "[dependencies] rank 0 step 0: 1F0 needs 0F0, which comes later on this rank\n");
}

constexpr const char* kPlan =
    "0F0,0SEND_F0,0RECV_B0,0B0\n"
    "1RECV_F0,1F0,1B0,1SEND_B0\n";

TEST(MessagesRule, AcceptsAPlanWrittenByHand) { EXPECT_EQ(judge(kPlan, Format::Lowered), ""); }

TEST(MessagesRule, WantsBothEndsOfEveryMessage) {
  EXPECT_EQ(judge("0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", Format::Lowered),
            "[messages] rank 0: 0SEND_F0 is missing\n");
  EXPECT_EQ(judge("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n", Format::Lowered),
            "[messages] rank 1: 1RECV_F0 is missing\n");
}

TEST(MessagesRule, WantsMessagesAroundTheirCompute) {
  EXPECT_EQ(judge("0SEND_F0,0F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0\n", Format::Lowered),
            "[messages] rank 0 step 0: 0SEND_F0 comes before what it sends, 0F0\n"
            "[messages] rank 1 step 1: 1RECV_F0 comes after what needs it, 1F0\n");
}

TEST(MessagesRule, RefusesMessagesThatGoNowhere) {
  EXPECT_EQ(judge("0F0,0SEND_F0,1RECV_F0,1F0\n", Format::Lowered),
            "[messages] rank 0 step 1: 0SEND_F0 has no peer on another rank\n"
            "[messages] rank 0 step 2: 1RECV_F0 has no peer on another rank\n");
}

TEST(MessagesRule, WantsOneOrderOnBothEndsOfAChannel) {
  EXPECT_EQ(judge("0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F1,1RECV_F0,1F0,1F1\n", Format::Lowered),
            "[messages] rank 1 step 1: 1RECV_F0 is received after 1RECV_F1, but rank 0 sends it before\n");
}

// Two ranks in a V: stage 0's activation and stage 3's gradient both go from rank 0 to rank 1.
TEST(MessagesRule, CountsAllThatGoesFromRankToRankAsOneChannel) {
  Schedule plan = lower(make_schedule({.name = "ZBVZeroBubble", .ranks = 2, .microbatches = 4}));
  auto& actions = plan.ranks[1];
  const auto is_receive_f = [](Action action) { return action.kind == Kind::RecvF; };
  const auto is_receive_b = [](Action action) { return action.kind == Kind::RecvB; };
  const auto gradient = std::ranges::find_if(actions, is_receive_b);
  const auto activation = std::find_if(gradient, actions.end(), is_receive_f);
  ASSERT_NE(activation, actions.end());
  std::rotate(gradient, activation, activation + 1);  // the activation before the gradient
  EXPECT_NE(judge(plan, Format::Lowered).find("but rank 0 sends it before"), std::string::npos);
}

TEST(ReduceGradRule, WantsOnePerStageAfterItsLastBackward) {
  EXPECT_EQ(judge("0F0,0REDUCE_GRAD,0B0\n", Format::Lowered),
            "[reduce_grad] rank 0 step 2: 0B0 after the stage's REDUCE_GRAD\n");
  EXPECT_EQ(judge("0F0,1F0,1B0,1REDUCE_GRAD,0B0\n", Format::Lowered),
            "[reduce_grad] rank 0: 0REDUCE_GRAD is missing\n");
  EXPECT_EQ(judge("0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD\n", Format::Lowered),
            "[reduce_grad] rank 0 step 3: 0REDUCE_GRAD is there twice\n");
  EXPECT_EQ(judge("0F0,0REDUCE_GRAD\n", Format::Lowered),
            "[reduce_grad] rank 0 step 1: 0REDUCE_GRAD in a schedule without backwards\n");
}

TEST(UnshardRule, WantsParametersGatheredWhileInUse) {
  EXPECT_EQ(judge("0UNSHARD,0F0,0RESHARD,0B0\n", Format::Lowered),
            "[unshard] rank 0 step 3: 0B0 while its stage is sharded\n");
  EXPECT_EQ(judge("0UNSHARD,0F0,0UNSHARD,0B0,0RESHARD,0RESHARD\n", Format::Lowered),
            "[unshard] rank 0 step 2: 0UNSHARD of a gathered stage\n"
            "[unshard] rank 0 step 5: 0RESHARD of a sharded stage\n");
}

TEST(Validation, CountsStepsInCells) {
  EXPECT_EQ(judge("0F0,1F0,(0F1;1B0)OVERLAP_F_B,0B1,1F1,1B1,0B0\n"),
            "[dependencies] rank 0 step 3: 0B1 needs 1B1, which comes later on this rank\n");
}

TEST(Validation, ReportsABoundedNumberForEachRule) {
  std::string csv;
  for (int j = 0; j < 1000; ++j) csv += "0B" + std::to_string(j) + ",";
  for (int j = 0; j < 1000; ++j) csv += "0F" + std::to_string(j) + (j < 999 ? "," : "\n");
  EXPECT_EQ(validate(parse_csv(csv), Format::ComputeOnly).size(), kDiagnosticsPerRule);
}

TEST(Validation, NamesItsRules) {
  EXPECT_EQ(rule_names(),
            (std::vector<std::string_view>{"format", "placement", "skips", "counts", "split", "order",
                                           "dependencies", "messages", "reduce_grad", "unshard"}));
}

}  // namespace
}  // namespace pipewright
