#include "pipewright/flight/drawing.h"

#include <gtest/gtest.h>

#include <limits>

#include "flight/world.h"

namespace pipewright {
namespace {

TEST(LastStep, IsTheLatestThatARankHasBegun) {
  auto world = world_of({{0, 1}});
  RecordedAction old = done(make_action(0, Kind::F, 0), 1, 2);
  old.step = 2;
  world[0].ranks[0].actions = {old, done(make_action(0, Kind::F, 1), 3, 4)};
  const Drawing drawing = draw_last_step(world, 0);
  EXPECT_EQ(drawing.name, "Step 3");
  EXPECT_EQ(drawing.source, "recorded");
  EXPECT_FALSE(drawing.complete);
  ASSERT_EQ(drawing.timeline.ranks.size(), 2U);
  ASSERT_EQ(drawing.timeline.ranks[0].size(), 1U);
  EXPECT_EQ(drawing.timeline.ranks[0][0].action, make_action(0, Kind::F, 1));
  EXPECT_EQ(drawing.timeline.ranks[0][0].start, 0);
  EXPECT_EQ(drawing.timeline.ranks[0][0].end, 1000);
  EXPECT_TRUE(drawing.timeline.ranks[1].empty());
}

TEST(LastStep, IsThatOfItsReplica) {
  auto world = world_of({{0}, {1}});
  world[0].ranks[0].actions = {done(make_action(0, Kind::F, 0), 1, 2)};
  world[1].ranks[0].actions = {done(make_action(0, Kind::F, 5), 1, 2)};
  const Drawing drawing = draw_last_step(world, 1);
  EXPECT_EQ(drawing.name, "Step 3 of replica 1");
  EXPECT_EQ(drawing.timeline.ranks[0][0].action.microbatch, 5U);
}

TEST(LastStep, TellsWaitingFromComputing) {
  auto world = world_of({{0, 1}});
  world[0].ranks[0].actions = {done(make_action(0, Kind::F, 0), 10, 12)};
  world[1].ranks[0].actions = {recorded(make_action(1, Kind::F, 0), Need::Message, 10, 13, 15)};
  const Drawing drawing = draw_last_step(world, 0);
  ASSERT_EQ(drawing.timeline.ranks[1].size(), 1U);
  EXPECT_EQ(drawing.timeline.ranks[1][0].start, 3000);
  EXPECT_EQ(drawing.timeline.ranks[1][0].end, 5000);
  ASSERT_EQ(drawing.waits.size(), 1U);
  EXPECT_EQ(drawing.waits[0].rank, 1);
  EXPECT_EQ(drawing.waits[0].start, 0);
  EXPECT_EQ(drawing.waits[0].end, 3000);
  EXPECT_EQ(drawing.waits[0].text, "1F0 waited for the activations of stage 0");
  EXPECT_FALSE(drawing.waits[0].lasts);
  EXPECT_TRUE(drawing.unfinished.empty());
}

TEST(LastStep, DrawsAWaitInVainAsAWait) {
  auto world = world_of({{0, 1}});
  world[1].ranks[0].actions = {recorded(make_action(1, Kind::F, 0), Need::Message, 10, -1, 15)};
  const Drawing drawing = draw_last_step(world, 0);
  EXPECT_TRUE(drawing.timeline.ranks[1].empty());
  ASSERT_EQ(drawing.waits.size(), 1U);
  EXPECT_EQ(drawing.waits[0].end, 5000);
  EXPECT_EQ(drawing.waits[0].text, "1F0 waited in vain for the activations of stage 0");
  EXPECT_FALSE(drawing.waits[0].lasts);
}

TEST(LastStep, LeavesBubblesOut) {
  auto world = world_of({{0}});
  world[0].ranks[0].actions = {done(make_action(0, Kind::F, 0), 1, 2), done(Action(), 2, 3)};
  EXPECT_EQ(draw_last_step(world, 0).timeline.ranks[0].size(), 1U);
}

TEST(LastStep, DrawsWhatHasNotEndedUpToTheRecord) {
  auto world = world_of({{0, 1}});
  world[0].ranks[0].actions = {done(make_action(0, Kind::F, 0), 0, 50),
                               running(make_action(0, Kind::F, 1), 50)};
  world[1].ranks[0].actions = {waiting(make_action(1, Kind::F, 0), 1)};
  world[1].written = kNow - kSecond;
  const Drawing drawing = draw_last_step(world, 0);
  EXPECT_EQ(drawing.label, "the last on record, in ms");
  EXPECT_EQ(drawing.timeline.ranks[0][1].end, 60'000);
  EXPECT_EQ(drawing.unfinished, (std::vector<TimelinePosition>{{.rank = 0, .position = 1}}));
  EXPECT_TRUE(drawing.timeline.ranks[1].empty());
  ASSERT_EQ(drawing.waits.size(), 1U);
  EXPECT_EQ(drawing.waits[0].end, 59'000);
  EXPECT_EQ(drawing.waits[0].text, "1F0 has waited 58 s for the activations of stage 0");
  EXPECT_TRUE(drawing.waits[0].lasts);
}

TEST(LastStep, CutsALongTimeWithoutEvents) {
  auto world = world_of({{0, 1}});
  world[0].ranks[0].actions = {done(make_action(0, Kind::F, 0), 0, 4),
                               running(make_action(0, Kind::F, 1), 4)};
  world[1].ranks[0].actions = {waiting(make_action(1, Kind::F, 0), 2)};
  const Drawing drawing = draw_last_step(world, 0);
  EXPECT_EQ(drawing.label,
            "the last on record, in ms; the last 56 s, in which nothing happened, are cut short");
  EXPECT_EQ(drawing.timeline.ranks[0][1].end, 6000);
  EXPECT_EQ(drawing.waits[0].end, 6000);
}

TEST(LastStep, ShowsTheWaitOfAProcessInTheLanesOfItsRanks) {
  auto world = world_of({{0, 0}});
  world[0].ranks[0].actions = {done(make_action(0, Kind::B, 0), 10, 50)};
  world[0].ranks[1].actions = {done(make_action(1, Kind::B, 0), 10, 20)};
  world[0].wait = ProcessWait{.what = "sum of the gradients", .among = {0}, .since = kBegin + 45 * kSecond};
  const Drawing drawing = draw_last_step(world, 0);
  ASSERT_EQ(drawing.waits.size(), 2U);
  EXPECT_EQ(drawing.waits[0].start, 40'000);
  EXPECT_EQ(drawing.waits[1].start, 35'000);
  EXPECT_EQ(drawing.waits[1].end, 50'000);
  EXPECT_EQ(drawing.waits[1].text, "process 0 has waited 15 s for the sum of the gradients");
}

TEST(LastStep, JoinsThePartsOfAnOverlap) {
  auto world = world_of({{0}});
  world[0].ranks[0].actions = {done(make_action(0, Kind::F, 1), 1, 4), done(make_action(0, Kind::B, 0), 2, 5),
                               done(make_action(0, Kind::F, 2), 5, 6)};
  const auto rank = draw_last_step(world, 0).timeline.ranks[0];
  EXPECT_TRUE(rank[0].action.fused_with_next());
  EXPECT_FALSE(rank[1].action.fused_with_next());
}

TEST(LastStep, CopesWithTimesThatMakeNoSense) {
  auto world = world_of({{0}});
  RecordedAction backwards = done(make_action(0, Kind::F, 0), 9, 3);
  RecordedAction endless = recorded(make_action(0, Kind::F, 1), Need::Message, 1, -1, 2);
  endless.ready = std::numeric_limits<Microseconds>::max();
  world[0].ranks[0].actions = {backwards, endless,
                               recorded(make_action(0, Kind::F, 2), Need::Nothing, -1, -1, -1)};
  world[0].written = 0;
  const Drawing drawing = draw_last_step(world, 0);
  for (const TimedAction& timed : drawing.timeline.ranks[0]) EXPECT_LE(timed.start, timed.end);
  for (const Wait& wait : drawing.waits) EXPECT_LE(wait.start, wait.end);
  EXPECT_FALSE(render_terminal(drawing, {.columns = 100}).empty());
  EXPECT_FALSE(render_svg(drawing).empty());
  EXPECT_FALSE(render_html("title", {&drawing, 1}).empty());
}

TEST(LastStep, OfNoActionsIsEmpty) {
  const Drawing drawing = draw_last_step(world_of({{0, 1}}), 0);
  EXPECT_EQ(drawing.timeline.ranks.size(), 2U);
  EXPECT_EQ(render_terminal(drawing, {.columns = 100}),
            "Step 0: the last on record, in ms\nrank 0 |\nrank 1 |\n");
}

}  // namespace
}  // namespace pipewright
