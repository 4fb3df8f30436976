#include "pipewright/schedule/lower.h"

#include <gtest/gtest.h>

#include "pipewright/base/error.h"
#include "pipewright/schedule/csv.h"
#include "pipewright/schedule/deadlock.h"
#include "pipewright/schedule/generate.h"
#include "schedule/ir/bubbles.h"
#include "schedule/lower/passes.h"
#include "schedule/lower/pipeline.h"

namespace pipewright {
namespace {

template <class Pass>
std::string after(Pass pass, const std::string& text) {
  return to_csv(pass(parse_csv(text)));
}

TEST(RemoveBubbles, LeavesTheOrder) { EXPECT_EQ(after(without_bubbles, ",0F0,,0B0\n"), "0F0,0B0\n"); }

TEST(MergeBackward, FusesAnInputGradientWithItsWeightGradient) {
  EXPECT_EQ(after(merge_backward, "0F0,0F1,0I0,0W0,0I1,0W1\n"), "0F0,0F1,0B0,0B1\n");
}

TEST(MergeBackward, LeavesThoseOfDifferentMicrobatchesOrStages) {
  EXPECT_EQ(after(merge_backward, "0F0,0F1,0I0,0I1,0W0,0W1\n"), "0F0,0F1,0I0,0I1,0W0,0W1\n");
  EXPECT_EQ(after(merge_backward, "0I0,1W0\n"), "0I0,1W0\n");
}

TEST(MergeBackward, LeavesPartsOfAnOverlap) {
  EXPECT_EQ(after(merge_backward, "0F0,(0F1;0I0)OVERLAP_F_B,0W0\n"), "0F0,(0F1;0I0)OVERLAP_F_B,0W0\n");
}

auto unshard(int max_active_stages) {
  return [=](const Schedule& schedule) { return add_unshard(schedule, max_active_stages); };
}

TEST(AddUnshard, GathersWithinTheLookAheadAndFreesTheRest) {
  EXPECT_EQ(after(unshard(1), "0F0,1F0,1B0,0B0\n"),
            "0UNSHARD,0F0,0RESHARD,1UNSHARD,1F0,1B0,1RESHARD,0UNSHARD,0B0,0RESHARD\n");
  EXPECT_EQ(after(unshard(2), "0F0,1F0,1B0,0B0\n"), "0UNSHARD,1UNSHARD,0F0,1F0,1B0,1RESHARD,0B0,0RESHARD\n");
}

TEST(AddUnshard, GathersBothStagesOfAnOverlap) {
  EXPECT_EQ(after(unshard(1), "(0F1;1B0)OVERLAP_F_B,2F0\n"),
            "0UNSHARD,1UNSHARD,(0F1;1B0)OVERLAP_F_B,0RESHARD,1RESHARD,2UNSHARD,2F0,2RESHARD\n");
}

TEST(AddUnshard, NeverHoldsMoreStagesThanAllowed) {
  for (const int allowed : {1, 2, 3, 5}) {
    const Schedule plan =
        lower(make_schedule({.name = "Interleaved1F1B", .ranks = 2, .microbatches = 8, .stages_per_rank = 6}),
              {.max_active_stages = allowed});
    int most = 0;
    for (const auto& actions : plan.ranks) {
      int active = 0;
      for (const Action action : actions) {
        active += action.kind == Kind::Unshard ? 1 : action.kind == Kind::Reshard ? -1 : 0;
        most = std::max(most, active);
      }
      EXPECT_EQ(active, 0);
    }
    EXPECT_EQ(most, allowed);
  }
}

TEST(AddReduceGrad, FollowsTheLastWeightGradient) {
  EXPECT_EQ(after(add_reduce_grad, "0F0,1F0,0F1,1F1,1B0,1I1,0B0,0I1,0W1,1W1\n"),
            "0F0,1F0,0F1,1F1,1B0,1I1,0B0,0I1,0W1,0REDUCE_GRAD,1W1,1REDUCE_GRAD\n");
}

TEST(AddReduceGrad, ComesAfterAWholeOverlap) {
  EXPECT_EQ(after(add_reduce_grad, "0F0,1F0,(1B0;0F1)OVERLAP_F_B,1F1,1B1,0B0,0B1\n"),
            "0F0,1F0,(1B0;0F1)OVERLAP_F_B,1F1,1B1,1REDUCE_GRAD,0B0,0B1,0REDUCE_GRAD\n");
}

TEST(AddMessages, SendsAfterComputeAndReceivesAtTheSameMoment) {
  EXPECT_EQ(after(add_messages, "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"),
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
            "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n");
}

TEST(AddMessages, HandsOverWithoutMessagesOnOneRank) {
  EXPECT_EQ(after(add_messages, "0F0,1F0,1B0,0B0\n"), "0F0,1F0,1B0,0B0\n");
}

Schedule deferred(const Schedule& schedule) { return defer_receives(add_messages(schedule)); }

TEST(DeferReceives, ReceivesJustBeforeUse) {
  EXPECT_EQ(after(deferred, "0F0,0F1\n1F0,1F1\n"), "0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F0,1F0,1RECV_F1,1F1\n");
}

TEST(DeferReceives, ReceivesEarlierWhereBlockedSendersWouldFormACircle) {
  // Rank 0 sends 1 while rank 1 sends back 0: one of them must listen first.
  const std::string plan = after(deferred, "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  EXPECT_EQ(plan,
            "0F0,0SEND_F0,0F1,0RECV_B0,0SEND_F1,0B0,0RECV_B1,0B1\n"
            "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
  EXPECT_TRUE(prove_deadlock_free(parse_csv(plan)).free());
}

TEST(Lowering, ComposesThePasses) {
  EXPECT_EQ(to_csv(lower(parse_csv("0F0,,,0I0,0W0\n,1F0,1B0\n"), {.merge_backward = true})),
            "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n"
            "1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1RESHARD\n");
}

std::string failure_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Lowering, RefusesAScheduleThatIsNotValid) {
  EXPECT_EQ(failure_of([] { lower(parse_csv("0B0,0F0\n")); }),
            "[lower] the schedule to lower: [order] rank 0 step 0: 0B0 before 0F0");
  EXPECT_NE(failure_of([] { lower(parse_csv("0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0\n")); }).find("[format]"),
            std::string::npos);
  EXPECT_NE(failure_of([] { lower(parse_csv("0F0\n"), {.max_active_stages = 0}); }), "");
}

TEST(Lowering, NamesThePassThatBreaksTheSchedule) {
  const auto run = [](const char* broken, Format format, bool keeps_compute) {
    const Pass pass{"broken_pass", true, [=](const Schedule&) { return parse_csv(broken); }, format,
                    keeps_compute};
    return failure_of([&] { run_passes(parse_csv("0F0,0B0\n"), {&pass, 1}); });
  };
  EXPECT_EQ(run("0F0,0REDUCE_GRAD,0B0\n", Format::Annotated, true),
            "[lower] after broken_pass: [reduce_grad] rank 0 step 2: 0B0 after the stage's REDUCE_GRAD");
  EXPECT_EQ(run("0B0,0F0\n", Format::ComputeOnly, true),
            "[lower] after broken_pass: the order of compute actions has changed");
  EXPECT_EQ(run("0F0,0W0,0I0\n", Format::ComputeOnly, false),
            "[lower] after broken_pass: [order] rank 0 step 1: 0W0 before 0I0");
}

}  // namespace
}  // namespace pipewright
