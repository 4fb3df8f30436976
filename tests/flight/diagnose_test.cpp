#include "pipewright/flight/diagnose.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "flight/world.h"

namespace pipewright {
namespace {

const std::vector<std::vector<int>> kFourRanks = {{0, 1, 2, 3}};

std::vector<std::string> texts(const Diagnosis& diagnosis) {
  std::vector<std::string> result;
  for (const Culprit& culprit : diagnosis.culprits) result.push_back(culprit.text);
  return result;
}

using Texts = std::vector<std::string>;

/// Ranks 0 and 1 wait, by way of one another, for rank 2.
std::vector<ProcessRecord> waiting_for_rank_2() {
  auto world = world_of(kFourRanks);
  world[0].ranks[0].actions = {done(make_action(0, Kind::F, 0), 1, 2),
                               waiting(make_action(0, Kind::B, 0), 5)};
  world[1].ranks[0].actions = {done(make_action(1, Kind::F, 0), 3, 4),
                               waiting(make_action(1, Kind::B, 0), 6)};
  return world;
}

TEST(Diagnose, NobodyWaits) {
  auto world = world_of(kFourRanks);
  world[1].ranks[0].actions = {running(make_action(1, Kind::F, 0), 3)};
  const Diagnosis diagnosis = diagnose(world);
  EXPECT_TRUE(diagnosis.waits.empty());
  EXPECT_TRUE(diagnosis.culprits.empty());
  EXPECT_TRUE(diagnose({}).culprits.empty());
}

TEST(Diagnose, EndsAtARankThatRuns) {
  auto world = waiting_for_rank_2();
  world[2].ranks[0].actions = {recorded(make_action(2, Kind::F, 0), Need::Message, 1, 7, -1)};
  world[3].ranks[0].actions = {waiting(make_action(3, Kind::F, 0), 1)};
  const Diagnosis diagnosis = diagnose(world);
  EXPECT_EQ(
      diagnosis.waits,
      (Texts{"rank 0 (process 0) has waited 55 s in 0B0 for the gradients of stage 1 from rank 1 (process 1)",
             "rank 1 (process 1) has waited 54 s in 1B0 for the gradients of stage 2 from rank 2 (process 2)",
             "rank 3 (process 3) has waited 59 s in 3F0 for the activations of stage 2 from rank 2 "
             "(process 2)"}));
  ASSERT_EQ(texts(diagnosis), (Texts{"rank 2 (process 2) has been running 2F0 of step 3 for 53 s"}));
  EXPECT_EQ(diagnosis.culprits[0].process, 2);
  EXPECT_EQ(diagnosis.culprits[0].replica, 0);
  EXPECT_EQ(diagnosis.culprits[0].rank, 2);
}

TEST(Diagnose, FollowsMessagesOverSkips) {
  auto world = world_of(kFourRanks);
  world[0].ranks[0].actions = {done(make_action(0, Kind::F, 0), 1, 2),
                               done(make_action(0, Kind::SendF, 0), 2, 3),
                               running(make_action(0, Kind::F, 1), 4)};
  RecordedAction skipping = waiting(make_action(3, Kind::F, 0), 5);
  skipping.from = 0;
  world[3].ranks[0].actions = {skipping};
  Diagnosis diagnosis = diagnose(world);
  EXPECT_EQ(diagnosis.waits,
            (Texts{"rank 3 (process 3) has waited 55 s in 3F0 for the activations of stage 0 from "
                   "rank 0 (process 0)"}));
  EXPECT_EQ(texts(diagnosis), (Texts{"rank 0 (process 0) has been running 0F1 of step 3 for 56 s"}));

  // What it has sent to stage 1 was not for stage 3.
  world[0].ranks[0].actions[1] = done(make_message(0, Kind::SendF, 0, 3), 2, 3);
  diagnosis = diagnose(world);
  ASSERT_EQ(diagnosis.culprits.size(), 1U);
  EXPECT_NE(diagnosis.culprits[0].text.find("has sent the message"), std::string::npos);
}

TEST(Diagnose, EndsAtAProcessWithoutARecord) {
  auto world = waiting_for_rank_2();
  world[3].ranks[0].actions = {waiting(make_action(3, Kind::F, 0), 1)};
  world.erase(world.begin() + 2);
  const Diagnosis diagnosis = diagnose(world);
  ASSERT_EQ(texts(diagnosis),
            (Texts{"process 2 (rank 2) has left no record: it was killed or stopped, or cannot be reached"}));
  EXPECT_EQ(diagnosis.culprits[0].process, 2);
  EXPECT_EQ(diagnosis.culprits[0].rank, -1);
}

TEST(Diagnose, NamesAProcessWithoutARecordOnceWhoeverWaitsForIt) {
  auto world = world_of({{0, 1, 1, 0}});
  world[0].ranks[0].actions = {waiting(make_action(0, Kind::B, 0), 5)};
  world[0].ranks[1].actions = {waiting(make_action(3, Kind::F, 0), 5)};
  world.pop_back();
  EXPECT_EQ(
      texts(diagnose(world)),
      (Texts{"process 1 (rank 1, 2) has left no record: it was killed or stopped, or cannot be reached"}));
}

TEST(Diagnose, GivesTheReasonOfAnAbsence) {
  auto world = waiting_for_rank_2();
  world.erase(world.begin() + 2);
  const std::map<int, std::string> absent = {{2, "is gone: its connections have closed"}};
  const Texts expected = {"process 2 (rank 2) is gone: its connections have closed"};
  EXPECT_EQ(texts(diagnose(world, absent)), expected);
  for (ProcessRecord& record : world) {
    for (RankRecord& rank : record.ranks) rank.actions.clear();
  }
  EXPECT_EQ(texts(diagnose(world, absent)), expected);
}

TEST(Diagnose, EndsAtAProcessBetweenSteps) {
  auto world = waiting_for_rank_2();
  world[2].in_step = false;
  world[2].step = 2;
  world[2].since = kNow - 4 * kSecond;
  const Diagnosis diagnosis = diagnose(world);
  EXPECT_EQ(texts(diagnosis), (Texts{"process 2 (rank 2) is between steps: its step 2 ended 4.00 s ago"}));
  world[2].step = 0;
  EXPECT_EQ(texts(diagnose(world)), (Texts{"process 2 (rank 2) has not begun its first step"}));
}

TEST(Diagnose, EndsAtARankThatBeginsNothing) {
  auto world = waiting_for_rank_2();
  EXPECT_EQ(texts(diagnose(world)), (Texts{"rank 2 (process 2) has begun nothing of step 3"}));
  world[2].ranks[0].actions = {done(make_action(2, Kind::F, 0), 7, 8), done(Action(), 8, 8)};
  EXPECT_EQ(texts(diagnose(world)),
            (Texts{"rank 2 (process 2) has begun nothing since its 2F0 of step 3 ended 52 s ago"}));
}

TEST(Diagnose, DoesNotTakeARankForADeadlockThatItsOwnProcessWaitsFor) {
  auto world = world_of({{0, 0, 1}});
  world[0].ranks[0].actions = {done(make_action(0, Kind::F, 0), 1, 2)};
  world[0].ranks[1].actions = {waiting(make_action(1, Kind::F, 1), 3)};
  world[1].ranks[0].actions = {waiting(make_action(2, Kind::F, 1), 3)};
  EXPECT_EQ(texts(diagnose(world)),
            (Texts{"rank 0 (process 0) has begun nothing since its 0F0 of step 3 ended 58 s ago"}));
}

TEST(Diagnose, GoesOnFromARankThatIsDoneToWhatItsProcessWaitsFor) {
  auto world = world_of({{0, 1, 1}});
  world[0].step = 4;
  world[0].ranks[0].actions = {waiting(make_action(0, Kind::B, 0), 20)};
  world[0].ranks[0].actions[0].step = 4;
  world[1].ranks[0].actions = {done(make_action(1, Kind::B, 7), 8, 9)};
  world[1].ranks[1].actions = {running(make_action(2, Kind::W, 7), 9)};
  EXPECT_EQ(texts(diagnose(world)), (Texts{"rank 2 (process 1) has been running 2W7 of step 3 for 51 s"}));
}

TEST(Diagnose, EndsAtAMessageThatDoesNotArrive) {
  auto world = waiting_for_rank_2();
  world[2].ranks[0].actions = {done(make_action(2, Kind::SendB, 0), 10, 11),
                               running(make_action(2, Kind::F, 1), 11)};
  const Diagnosis diagnosis = diagnose(world);
  EXPECT_EQ(diagnosis.waits[1],
            "rank 1 (process 1) has waited 54 s in 1B0 for the gradients of stage 2 from rank 2 (process 2), "
            "which has sent them");
  EXPECT_EQ(texts(diagnosis),
            (Texts{"rank 2 (process 2) has sent the message, and rank 1 (process 1) has not got it: the "
                   "connection between process 2 and process 1 does not deliver"}));
}

TEST(Diagnose, TakesNoMessageOfAnotherStepOrSentAfterTheRecord) {
  auto world = waiting_for_rank_2();
  world[2].ranks[0].actions = {done(make_action(2, Kind::SendB, 0), 10, 11),
                               running(make_action(2, Kind::F, 1), 11)};
  const Texts runs = {"rank 2 (process 2) has been running 2F1 of step 3 for 49 s"};
  world[2].ranks[0].actions[0].step = 2;
  EXPECT_EQ(texts(diagnose(world)), runs);
  world[2].ranks[0].actions[0].step = 3;
  world[1].written = kBegin + 9 * kSecond;
  EXPECT_EQ(texts(diagnose(world)), runs);
}

const ProcessWait kSum = {.what = "sum of the gradients of stage 1", .among = {0, 1, 2}, .since = kBegin};

TEST(Diagnose, FollowsAWaitOfTheProcessToWhoHasNotComeToIt) {
  auto world = world_of({{0}, {1}, {2}});
  world[0].wait = world[2].wait = kSum;
  world[1].ranks[0].actions = {running(make_action(0, Kind::B, 5), 9)};
  const Diagnosis diagnosis = diagnose(world);
  EXPECT_EQ(diagnosis.waits[0],
            "process 0 (rank 0 of replica 0) has waited 60 s for the sum of the gradients of stage 1 with "
            "process 1, 2");
  EXPECT_EQ(texts(diagnosis),
            (Texts{"rank 0 of replica 1 (process 1) has been running 0B5 of step 3 for 51 s"}));
}

TEST(Diagnose, EndsAtAProcessInAStepWhoseRanksRest) {
  auto world = world_of({{0}, {1}, {2}});
  world[0].wait = world[2].wait = kSum;
  EXPECT_EQ(texts(diagnose(world)), (Texts{"process 1 (rank 0 of replica 1) is in step 3, and its ranks have "
                                           "ended all that they began"}));
}

TEST(Diagnose, BlamesTheConnectionsOfWhatAllHaveComeTo) {
  auto world = world_of({{0}, {1}, {2}});
  for (ProcessRecord& record : world) record.wait = kSum;
  const Diagnosis diagnosis = diagnose(world);
  ASSERT_EQ(diagnosis.culprits.size(), 3U);
  EXPECT_EQ(
      diagnosis.culprits[1].text,
      "process 1 (rank 0 of replica 1) waits for what all have begun: a connection to process 0, 2 does "
      "not deliver");
}

TEST(Diagnose, FollowsShardedParametersToTheReplicaThatHasNotBegun) {
  auto world = world_of({{0}, {1}, {2}});
  const RecordedAction unshard = done(make_action(0, Kind::Unshard), 1, 2);
  world[0].ranks[0].actions = {unshard, waiting(make_action(0, Kind::F, 0), 2, Need::Parameters)};
  world[1].ranks[0].actions = {unshard, waiting(make_action(0, Kind::F, 0), 2, Need::Parameters)};
  world[2].in_step = false;
  world[2].step = 2;
  world[2].since = kNow;
  const Diagnosis diagnosis = diagnose(world);
  EXPECT_EQ(diagnosis.waits[0],
            "rank 0 of replica 0 (process 0) has waited 58 s in 0F0 for the parameters of stage 0 from the "
            "other replicas");
  EXPECT_EQ(texts(diagnosis),
            (Texts{"process 2 (rank 0 of replica 2) is between steps: its step 2 ended 0.00 s ago"}));
}

TEST(Diagnose, CountsHowOftenAStageWasUnsharded) {
  auto world = world_of({{0}, {1}});
  const RecordedAction unshard = done(make_action(0, Kind::Unshard), 1, 2);
  world[0].ranks[0].actions = {unshard, unshard, waiting(make_action(0, Kind::F, 1), 2, Need::Parameters)};
  world[1].ranks[0].actions = {unshard, running(make_action(0, Kind::F, 0), 2)};
  EXPECT_EQ(texts(diagnose(world)),
            (Texts{"rank 0 of replica 1 (process 1) has been running 0F0 of step 3 for 58 s"}));
  world[1].ranks[0].actions.push_back(unshard);
  EXPECT_EQ(texts(diagnose(world)), (Texts{"rank 0 of replica 0 (process 0) waits for what all have begun: a "
                                           "connection to process 1 does not deliver"}));
}

TEST(Diagnose, OneReplicaOfAProcessUnshardsForAllOfThem) {
  auto world = world_of({{0}, {1}, {1}});
  const RecordedAction unshard = done(make_action(0, Kind::Unshard), 1, 2);
  world[0].ranks[0].actions = {unshard, waiting(make_action(0, Kind::F, 0), 2, Need::Parameters)};
  world[1].ranks[0].actions = {unshard, running(make_action(0, Kind::F, 0), 2)};
  EXPECT_EQ(texts(diagnose(world)), (Texts{"rank 0 of replica 0 (process 0) waits for what all have begun: a "
                                           "connection to process 1 does not deliver"}));
}

TEST(Diagnose, FindsACycle) {
  auto world = world_of({{0, 1}});
  world[0].ranks[0].actions = {waiting(make_action(0, Kind::B, 0), 1)};
  world[1].ranks[0].actions = {waiting(make_action(1, Kind::F, 1), 1)};
  EXPECT_EQ(texts(diagnose(world)),
            (Texts{"rank 0 (process 0) waits for itself by way of the others: a deadlock"}));
}

TEST(Diagnose, NamesAProcessThatIsElsewhereInTheProgram) {
  auto world = world_of({{0, 1}});
  world[0].in_step = false;
  world[0].wait = ProcessWait{.what = "meeting of all processes", .among = {0, 1}, .since = kNow};
  world[1].ranks[0].actions = {waiting(make_action(1, Kind::F, 0), 1)};
  EXPECT_EQ(
      texts(diagnose(world)),
      (Texts{"process 0 (rank 0) waits for the meeting of all processes while others wait for it elsewhere: "
             "the processes do not make the same calls in the same order"}));
}

TEST(Diagnose, OrdersCulpritsByHowSureTheyAreAndHowLongTheyLast) {
  auto world = world_of({{0, 1, 2, 3, 4, 5, 6, 7}});
  world[0].ranks[0].actions = {running(make_action(0, Kind::F, 1), 40)};
  world[1].ranks[0].actions = {waiting(make_action(1, Kind::F, 1), 1),
                               waiting(make_action(1, Kind::B, 0), 1)};
  world[2].ranks[0].actions = {running(make_action(2, Kind::F, 1), 30)};
  world[3].in_step = false;
  world[4].ranks[0].actions = {waiting(make_action(4, Kind::F, 1), 1),
                               waiting(make_action(4, Kind::B, 0), 1)};
  world[5].ranks[0].actions = {done(make_action(5, Kind::SendB, 0), 1, 2)};
  world[6].ranks[0].actions = {waiting(make_action(6, Kind::B, 1), 1)};
  world.pop_back();
  const Diagnosis diagnosis = diagnose(world);
  std::vector<int> order;
  for (const Culprit& culprit : diagnosis.culprits) order.push_back(culprit.process);
  EXPECT_EQ(order, (std::vector<int>{7, 5, 3, 2, 0}));
}

TEST(Diagnose, CopesWithAChainOverAllRanksThereCanBe) {
  auto world = world_of({std::vector<int>(kMaxRanks)});
  // Against the order of the ranks, so that the first one that is looked at is the far end.
  std::ranges::reverse(world[0].placement);
  for (RankRecord& rank : world[0].ranks) {
    rank.actions = {waiting(make_action(static_cast<Stage>(kMaxRanks) - 1 - rank.rank, Kind::F, 0), 1)};
  }
  world[0].ranks.back().actions = {running(make_action(0, Kind::F, 0), 1)};
  EXPECT_EQ(texts(diagnose(world)), (Texts{"rank 65535 has been running 0F0 of step 3 for 59 s"}));
}

TEST(Diagnose, CopesWithAnActionThatHasNoNeighbour) {
  auto world = world_of({{0, 1}});
  world[0].ranks[0].actions = {waiting(make_action(0, Kind::F, 0), 1)};
  world[1].ranks[0].actions = {waiting(make_action(1, Kind::RecvB, 0), 1)};
  EXPECT_EQ(diagnose(world).culprits.size(), 2U);
}

}  // namespace
}  // namespace pipewright
