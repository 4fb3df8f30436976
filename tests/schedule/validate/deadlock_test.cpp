#include "pipewright/schedule/deadlock.h"

#include <gtest/gtest.h>

#include "pipewright/schedule/csv.h"
#include "pipewright/schedule/generate.h"
#include "pipewright/schedule/lower.h"

namespace pipewright {
namespace {

std::string verdict(const std::string& csv, const ChannelCapacity& capacity = {}) {
  return to_text(prove_deadlock_free(parse_csv(csv), capacity));
}

// Both ranks send first: without buffers neither receives.
constexpr const char* kBothSendFirst =
    "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
    "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n";

TEST(DeadlockProof, NamesTheCircleOfActions) {
  EXPECT_EQ(verdict(kBothSendFirst),
            "rank 0 step 3: 0SEND_F1 waits for 1RECV_F1 of rank 1\n"
            "rank 1 step 3: 1SEND_B0 waits for 0RECV_B0 of rank 0");
}

TEST(DeadlockProof, KnowsWhatBuffersAreWorth) {
  EXPECT_EQ(verdict(kBothSendFirst, {.messages = 1}), "free of deadlock");
  EXPECT_EQ(verdict(kBothSendFirst, {.messages = 0, .overrides = {{.from = 1, .to = 0, .messages = 1}}}),
            "free of deadlock");
  EXPECT_NE(verdict(kBothSendFirst, {.messages = 1,
                                     .overrides = {{.from = 0, .to = 1, .messages = 0},
                                                   {.from = 1, .to = 0, .messages = 0}}}),
            "free of deadlock");
}

TEST(DeadlockProof, LeavesOutThoseWhoOnlyWaitForTheCircle) {
  // Rank 2 waits for rank 1, which is in a circle with rank 0.
  EXPECT_EQ(
      verdict("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
              "1RECV_F0,1F0,1SEND_F0,1RECV_B0,1B0,1SEND_B0,1RECV_F1,1F1,1SEND_F1,1RECV_B1,1B1,1SEND_B1\n"
              "2RECV_F0,2F0,2B0,2SEND_B0,2RECV_F1,2F1,2B1,2SEND_B1\n"),
      "rank 0 step 3: 0SEND_F1 waits for 1RECV_F1 of rank 1\n"
      "rank 1 step 5: 1SEND_B0 waits for 0RECV_B0 of rank 0");
}

TEST(DeadlockProof, FollowsACircleThroughManyRanks) {
  // Stages 0..3 on ranks 0, 1, 2, 0: each rank sends its own before it receives.
  EXPECT_EQ(verdict("0F0,0SEND_F0,0F1,0SEND_F1,3RECV_F0,3F0,3RECV_F1,3F1\n"
                    "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1\n"
                    "2RECV_F0,2F0,2SEND_F0,2RECV_F1,2F1,2SEND_F1\n"),
            "free of deadlock");
  EXPECT_EQ(
      verdict("0F0,0SEND_F0,0F1,0SEND_F1,0F2,0SEND_F2,0F3,0SEND_F3,3RECV_F0,3F0,3RECV_F1,3F1,3RECV_F2,3F2,"
              "3RECV_F3,3F3\n"
              "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1,1RECV_F2,1F2,1SEND_F2,1RECV_F3,1F3,1SEND_F3\n"
              "2RECV_F0,2F0,2SEND_F0,2RECV_F1,2F1,2SEND_F1,2RECV_F2,2F2,2SEND_F2,2RECV_F3,2F3,2SEND_F3\n"),
      "rank 0 step 5: 0SEND_F2 waits for 1RECV_F2 of rank 1\n"
      "rank 1 step 5: 1SEND_F1 waits for 2RECV_F1 of rank 2\n"
      "rank 2 step 2: 2SEND_F0 waits for 3RECV_F0 of rank 0");
}

TEST(DeadlockProof, TakesPlansWithoutMessages) {
  EXPECT_EQ(verdict("0F0,1F0,1B0,0B0\n"), "free of deadlock");
}

TEST(DeadlockProof, HoldsAtThousandsOfRanks) {
  const Schedule plan = lower(make_schedule({.name = "1F1B", .ranks = 2000, .microbatches = 3}));
  EXPECT_TRUE(prove_deadlock_free(plan).free());
}

}  // namespace
}  // namespace pipewright
