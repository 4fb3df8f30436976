#include "pipewright/runtime/measured.h"

#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <set>
#include <thread>

#include "pipewright/schedule/csv.h"
#include "pipewright/schedule/render.h"
#include "pipewright/schedule/simulate.h"
#include "runtime/compare.h"
#include "runtime/training_schedules.h"

namespace pipewright {
namespace {

std::string cells_text(const std::vector<Action>& actions) {
  std::string text;
  for (const Action action : actions) text += to_text(action) + " ";
  return text;
}

std::vector<Action> actions_of(const std::vector<TimedAction>& rank) {
  std::vector<Action> actions;
  for (const TimedAction& timed : rank) actions.push_back(timed.action);
  return actions;
}

/// When an action ran; on whatever rank.
const TimedAction& find(const Timeline& timeline, Stage stage, Kind kind, Microbatch microbatch) {
  static const TimedAction none;
  for (const auto& rank : timeline.ranks) {
    for (const TimedAction& timed : rank) {
      const Action action = timed.action;
      if (action.kind == kind && action.stage == stage &&
          static_cast<Microbatch>(action.microbatch) == microbatch) {
        return timed;
      }
    }
  }
  ADD_FAILURE() << "no " << to_text(make_action(stage, kind, microbatch));
  return none;
}

class Measured : public testing::TestWithParam<ScheduleInfo> {
 protected:
  static StepResult traced_step(const Schedule& schedule, Schedule* plan = nullptr) {
    Pipeline pipeline = make_pipeline(mlp(), schedule);
    if (plan) *plan = pipeline.plan();
    return pipeline.step(presplit(mlp().data(schedule.microbatches)), {.trace = true});
  }
};
INSTANTIATE_TEST_SUITE_P(Every, Measured, testing::ValuesIn(training_schedules()), schedule_test_name);

TEST_P(Measured, TimelineIsThePlanWithTimes) {
  Schedule plan;
  const Timeline timeline = traced_step(make_schedule(GetParam(), 2, 5), &plan).timeline;
  EXPECT_EQ(timeline.placement, plan.placement);
  EXPECT_EQ(timeline.microbatches, plan.microbatches);
  ASSERT_EQ(timeline.ranks.size(), plan.ranks.size());
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    EXPECT_EQ(cells_text(actions_of(timeline.ranks[rank])), cells_text(plan.ranks[rank]));
    EXPECT_TRUE(actions_of(timeline.ranks[rank]) == plan.ranks[rank]) << "fused marks differ";
    for (const TimedAction& timed : timeline.ranks[rank]) {
      EXPECT_GE(timed.start, 0) << to_text(timed.action);
      EXPECT_GE(timed.end, timed.start) << to_text(timed.action);
    }
  }
}

TEST_P(Measured, ComputeOfARankOverlapsOnlyWithinACell) {
  const Timeline timeline = traced_step(make_schedule(GetParam(), 2, 6)).timeline;
  for (const auto& rank : timeline.ranks) {
    const std::vector<Action> actions = actions_of(rank);
    double end = 0;
    for (std::size_t at = 0; at < actions.size();) {
      const std::size_t size = cell_size(actions, at);
      double cell_end = end;
      for (std::size_t part = at; part < at + size; ++part) {
        if (!is_compute(actions[part].kind)) continue;
        EXPECT_GE(rank[part].start, end) << to_text(actions[part]);
        EXPECT_GT(rank[part].end, rank[part].start) << to_text(actions[part]);
        cell_end = std::max(cell_end, rank[part].end);
      }
      end = cell_end;
      at += size;
    }
  }
}

TEST_P(Measured, DataArriveBeforeTheyAreUsedAndAfterTheyAreMade) {
  const Schedule schedule = make_schedule(GetParam(), 2, 4);
  const Timeline timeline = traced_step(schedule).timeline;
  for (Stage stage = 1; stage < schedule.stage_count(); ++stage) {
    for (Microbatch k = 0; k < 4; ++k) {
      SCOPED_TRACE("stage " + std::to_string(stage) + ", microbatch " + std::to_string(k));
      const TimedAction& made = find(timeline, stage - 1, Kind::F, k);
      const TimedAction& used = find(timeline, stage, Kind::F, k);
      EXPECT_LE(made.end, used.start);
      const auto at = static_cast<std::size_t>(stage);
      if (schedule.placement[at] == schedule.placement[at - 1]) continue;
      const TimedAction& sent = find(timeline, stage - 1, Kind::SendF, k);
      const TimedAction& received = find(timeline, stage, Kind::RecvF, k);
      EXPECT_LE(made.end, sent.start);
      EXPECT_LE(sent.start, received.end);
      EXPECT_LE(received.end, used.start);
    }
  }
}

TEST_P(Measured, CanBeMeasuredAndDrawn) {
  const Timeline timeline = traced_step(make_schedule(GetParam(), 2, 4)).timeline;
  const Costs costs = measured_costs({&timeline, 1});
  ASSERT_EQ(costs.stages.size(), timeline.placement.size());
  for (const StageCosts& stage : costs.stages) {
    EXPECT_GT(stage.f, 0);
    EXPECT_GT(stage.full_backward(), 0);
  }
  const Metrics metrics = measure(timeline, costs);
  EXPECT_GT(metrics.makespan, 0);
  EXPECT_GE(metrics.makespan, metrics.ideal * 0.999);
  const Drawing drawing{"step", "", "measured", timeline, costs};
  EXPECT_NE(render_html("Measured", {&drawing, 1}).find("Measured"), std::string::npos);
}

/// A pipeline of two ranks whose first stage takes so long in its forward.
Pipeline slow_first_stage(std::chrono::milliseconds duration) {
  Model model = dropout();
  model.layers = {function([duration](const Values& inputs) {
                    std::this_thread::sleep_for(duration);
                    return inputs;
                  }),
                  dense(4, 4)};
  return make_pipeline(model, parse_csv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"));
}

TEST(MeasuredTimes, AreMillisecondsOfComputeWithoutWaiting) {
  Pipeline pipeline = slow_first_stage(std::chrono::milliseconds(100));
  const auto data = dropout().data(2);
  const std::vector steps{pipeline.step(presplit(data), {.trace = true}).timeline,
                          pipeline.step(presplit(data), {.trace = true}).timeline};
  const Costs costs = measured_costs(steps);
  EXPECT_GE(costs.stages[0].f, 100);
  EXPECT_LT(costs.stages[0].f, 1000);
  // The other stage waits 100 ms for each microbatch, and does little then.
  EXPECT_LT(costs.stages[1].f, 80);
  EXPECT_GE(find(steps[0], 1, Kind::F, 0).start, 100);
  EXPECT_GE(find(steps[1], 1, Kind::F, 1).start, 200);
}

TEST(MeasuredTimes, AreTakenInEvalToo) {
  Pipeline pipeline = slow_first_stage(std::chrono::milliseconds(1));
  const Timeline timeline =
      pipeline.eval(presplit(dropout().data(3)), {.microbatches = 3, .trace = true}).timeline;
  ASSERT_EQ(timeline.ranks.size(), 2U);
  EXPECT_EQ(timeline.microbatches, 3);
  EXPECT_LE(find(timeline, 0, Kind::F, 2).end, find(timeline, 1, Kind::F, 2).start);
}

/// One rank with stage 0, whose actions took these times.
Timeline timeline_of(const std::vector<std::pair<Kind, double>>& durations) {
  Timeline timeline{.ranks = {{}}, .placement = {0}, .microbatches = 9};
  double now = 0;
  for (const auto& [kind, duration] : durations) {
    timeline.ranks[0].push_back({make_action(0, kind, 0), now, now + duration});
    now += duration + 1;
  }
  return timeline;
}

TEST(MeasuredCosts, AreMediansOverStepsAndMicrobatches) {
  const std::vector steps{
      timeline_of({{Kind::F, 5}, {Kind::F, 1}, {Kind::I, 8}, {Kind::W, 2}}),
      timeline_of({{Kind::F, 100}, {Kind::I, 7}, {Kind::W, 3}, {Kind::I, 900}, {Kind::W, 4}})};
  const Costs costs = measured_costs(steps);
  ASSERT_EQ(costs.stages.size(), 1U);
  EXPECT_DOUBLE_EQ(costs.stages[0].f, 5);
  EXPECT_DOUBLE_EQ(costs.stages[0].i, 8);
  EXPECT_DOUBLE_EQ(costs.stages[0].w, 3);
  EXPECT_DOUBLE_EQ(costs.stages[0].full_backward(), 11);
}

TEST(MeasuredCosts, OfKindsThatNeverRanComeFromTheOthers) {
  const std::vector steps{timeline_of({{Kind::F, 5}, {Kind::B, 6}})};
  const Costs costs = measured_costs(steps);
  EXPECT_DOUBLE_EQ(costs.stages[0].full_backward(), 6);
  EXPECT_DOUBLE_EQ(costs.stages[0].i, 3);
  EXPECT_DOUBLE_EQ(costs.stages[0].w, 3);
}

std::mutex ranges_mutex;
std::multiset<std::string> ranges;

std::unique_ptr<at::ObserverContext> see_range(const at::RecordFunction& call) {
  if (std::string_view(call.name()).starts_with("PP:")) {
    const std::lock_guard lock(ranges_mutex);
    ranges.insert(call.name());
  }
  return nullptr;
}

TEST(ProfilerRanges, AreNamedAfterTheirActions) {
  Pipeline pipeline =
      make_local_pipeline(mlp(), make_schedule({.name = "DualPipeV", .ranks = 2, .microbatches = 5}));
  std::multiset<std::string> expected;
  for (const auto& actions : pipeline.plan().ranks) {
    for (const Action action : actions) {
      if (is_compute(action.kind) || is_message(action.kind)) expected.insert("PP:" + to_text(action));
    }
  }
  const auto handle = at::addGlobalCallback(at::RecordFunctionCallback(&see_range));
  pipeline.step(presplit(mlp().data(5)));
  at::removeCallback(handle);
  const std::lock_guard lock(ranges_mutex);
  std::erase_if(ranges, [](const std::string& name) {
    return name.find("SHARD") != std::string::npos || name.find("REDUCE") != std::string::npos;
  });
  EXPECT_EQ(ranges, expected);
}

}  // namespace
}  // namespace pipewright
