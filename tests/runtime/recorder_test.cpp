#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "runtime/flight/rank_recorder.h"

namespace pipewright {
namespace {

TEST(RankRecorder, GivesTheLastActionsInTheirOrder) {
  RankRecorder recorder({.replica = 1, .rank = 3});
  const auto start = Clock::now();
  for (int at = 0; at < 2000; ++at) {
    const auto ticket = recorder.begin(make_action(2, Kind::F, at), 7, start + std::chrono::microseconds(at));
    recorder.needs(ticket, Need::Message);
    recorder.ready(ticket, start + std::chrono::microseconds(at + 1));
    if (at < 1999) recorder.end(ticket, start + std::chrono::microseconds(at + 2));
  }
  const RankRecord record = recorder.read();
  EXPECT_EQ(record.replica, 1);
  EXPECT_EQ(record.rank, 3);
  ASSERT_EQ(record.actions.size(), 512U);
  for (std::size_t at = 0; at < record.actions.size(); ++at) {
    const RecordedAction& each = record.actions[at];
    EXPECT_EQ(each.action, make_action(2, Kind::F, static_cast<Microbatch>(2000 - 512 + at)));
    EXPECT_EQ(each.step, 7);
    EXPECT_EQ(each.need, Need::Message);
    EXPECT_EQ(each.ready - each.start, 1);
    EXPECT_EQ(each.end == 0, at == 511);
  }
}

TEST(RankRecorder, TellsWaitingFromRunning) {
  RankRecorder recorder({});
  const auto ticket = recorder.begin(make_action(1, Kind::F, 0), 1, Clock::now());
  EXPECT_FALSE(recorder.read().actions[0].waits());
  recorder.needs(ticket, Need::Message);
  EXPECT_TRUE(recorder.read().actions[0].waits());
  recorder.ready(ticket, Clock::now());
  EXPECT_FALSE(recorder.read().actions[0].waits());
  recorder.needs(ticket, Need::Parameters);
  EXPECT_TRUE(recorder.read().actions[0].waits());
  recorder.ready(ticket, Clock::now());
  recorder.end(ticket, Clock::now());
  EXPECT_FALSE(recorder.read().actions[0].waits());
}

TEST(RankRecorder, CanBeReadWhileItIsWritten) {
  RankRecorder recorder({});
  std::atomic<bool> end = false;
  const auto write = [&](Stage stage) {
    for (Microbatch at = 0; !end; at = (at + 1) % 1000) {
      // What belongs together: of stage s, microbatch m, the step is m.
      const RankRecorder::Ticket ticket = recorder.begin(make_action(stage, Kind::B, at), at, Clock::now());
      recorder.end(ticket, Clock::now());
    }
  };
  std::thread writer(write, 1);
  std::size_t read = 0;
  while (read < 100'000) {
    for (const RecordedAction& each : recorder.read().actions) {
      ++read;
      EXPECT_EQ(each.action.kind, Kind::B);
      EXPECT_EQ(each.step, static_cast<std::int64_t>(each.action.microbatch));
      EXPECT_TRUE(each.end == 0 || each.end >= each.start);
    }
  }
  end = true;
  writer.join();
}

}  // namespace
}  // namespace pipewright
