#include "runtime/executor/serial_order.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <tuple>

#include "pipewright/schedule/csv.h"
#include "pipewright/schedule/lower.h"
#include "schedule/every_schedule.h"
#include "schedule/ir/channels.h"

namespace pipewright {
namespace {

class SerialOrder : public testing::TestWithParam<ScheduleInfo> {};
INSTANTIATE_TEST_SUITE_P(Every, SerialOrder, testing::ValuesIn(known_schedules()), schedule_test_name);

TEST_P(SerialOrder, HasEveryActionInItsRanksOrderAndNoMessageBeforeItWasSent) {
  for (const Rank ranks : {1, 2, 3, 4, 8}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    const Schedule plan =
        lower(make_schedule({.name = std::string(GetParam().name), .ranks = ranks, .microbatches = 6}));
    std::vector<std::size_t> next(plan.ranks.size());
    std::set<std::string> sent;
    for (const Turn& turn : serial_order(plan)) {
      const auto rank = static_cast<std::size_t>(turn.rank);
      ASSERT_EQ(turn.at, next[rank]);
      for (std::size_t at = turn.at; at < turn.at + turn.size; ++at) {
        const Action action = plan.ranks[rank].at(at);
        if (is_send(action.kind)) sent.insert(to_text(action));
        if (is_receive(action.kind)) {
          ASSERT_TRUE(sent.contains(to_text(counterpart(action)))) << to_text(action);
        }
      }
      next[rank] += turn.size;
    }
    for (std::size_t rank = 0; rank < next.size(); ++rank) EXPECT_EQ(next[rank], plan.ranks[rank].size());
  }
}

TEST(SerialOrderOfAPlan, PrefersLaterRanks) {
  const Schedule plan = lower(make_schedule({.name = "1F1B", .ranks = 2, .microbatches = 3}));
  std::size_t most_under_way = 0;
  std::size_t under_way = 0;
  for (const Turn& turn : serial_order(plan)) {
    const Action action = plan.ranks[static_cast<std::size_t>(turn.rank)][turn.at];
    if (action.kind == Kind::SendF) most_under_way = std::max(most_under_way, ++under_way);
    if (action.kind == Kind::RecvF) --under_way;
  }
  EXPECT_EQ(most_under_way, 1);
}

}  // namespace
}  // namespace pipewright
