#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "pipewright/schedule/csv.h"
#include "runtime/compare.h"
#include "runtime/training_schedules.h"

namespace pipewright {
namespace {

constexpr Kind kKinds[] = {Kind::F,       Kind::B,       Kind::I,         Kind::W,
                           Kind::SendF,   Kind::RecvF,   Kind::SendB,     Kind::RecvB,
                           Kind::Unshard, Kind::Reshard, Kind::ReduceGrad};

/// Cells that handlers saw, by rank, in their order.
class Record {
 public:
  void see(const ActionContext& context) {
    const std::lock_guard lock(mutex_);
    seen_[context.rank].emplace_back(cell_text(context.cell));
  }
  std::map<Rank, std::vector<std::string>> take() { return std::exchange(seen_, {}); }

 private:
  std::mutex mutex_;
  std::map<Rank, std::vector<std::string>> seen_;
};

std::map<Rank, std::vector<std::string>> actions_of(const Schedule& plan) {
  std::map<Rank, std::vector<std::string>> texts;
  for (Rank rank = 0; rank < plan.rank_count(); ++rank) {
    for (const Action action : plan.ranks[static_cast<std::size_t>(rank)]) {
      texts[rank].push_back(to_text(action));
    }
  }
  return texts;
}

class HandlersOf : public testing::TestWithParam<ScheduleInfo> {};
INSTANTIATE_TEST_SUITE_P(Every, HandlersOf, testing::ValuesIn(training_schedules()), schedule_test_name);

TEST_P(HandlersOf, EveryKindSeeEveryActionAndCanRunIt) {
  const Schedule schedule = make_schedule(GetParam(), 2, 5);
  const Model model = mlp();
  const auto data = model.data(5);
  Unsplit unsplit(model);
  const auto expected = unsplit.run(data);
  Pipeline pipeline = make_local_pipeline(model, schedule);
  Record record;
  for (const Kind kind : kKinds) {
    pipeline.set_handler(kind, [&record](const ActionContext& context) {
      record.see(context);
      context.run();
    });
  }
  expect_losses(pipeline.step(presplit(data)), expected);
  expect_gradients(pipeline, unsplit.gradients());
  // The parts of an OVERLAP_F_B have no order among themselves.
  auto seen = record.take();
  auto planned = actions_of(pipeline.plan());
  for (auto* all : {&seen, &planned}) {
    for (auto& [rank, texts] : *all) std::sort(texts.begin(), texts.end());
  }
  EXPECT_EQ(seen, planned);

  for (const Kind kind : kKinds) pipeline.set_handler(kind, {});
  pipeline.zero_grad();
  expect_losses(pipeline.step(presplit(data)), expected);
  expect_gradients(pipeline, unsplit.gradients());
  EXPECT_TRUE(record.take().empty());
}

TEST(OverlapHandler, SeesWholeCellsAndCanRunTheirParts) {
  const Schedule schedule = make_schedule({.name = "DualPipeV", .ranks = 2, .microbatches = 6});
  const Model model = mlp();
  const auto data = model.data(6);
  Unsplit unsplit(model);
  const auto expected = unsplit.run(data);
  Pipeline pipeline = make_local_pipeline(model, schedule);
  const auto fused = [](Action action) { return action.fused_with_next(); };
  std::ptrdiff_t planned = 0;
  for (const auto& actions : pipeline.plan().ranks) {
    planned += std::count_if(actions.begin(), actions.end(), fused);
  }
  ASSERT_GT(planned, 0);

  for (const bool whole : {true, false}) {
    std::atomic<std::ptrdiff_t> seen = 0;
    pipeline.set_overlap_handler([&seen, whole](const ActionContext& context) {
      ++seen;
      ASSERT_EQ(context.cell.size(), 2U);
      if (whole) {
        context.run();
      } else {
        context.run_part(context.cell[1]);
        context.run_part(context.cell[0]);
      }
    });
    pipeline.zero_grad();
    expect_losses(pipeline.step(presplit(data)), expected);
    expect_gradients(pipeline, unsplit.gradients());
    EXPECT_EQ(seen, planned);
  }
  pipeline.set_overlap_handler({});
  pipeline.zero_grad();
  expect_losses(pipeline.step(presplit(data)), expected);
  expect_gradients(pipeline, unsplit.gradients());
}

TEST(Handler, MayRunNoPartThatIsNotOfItsCell) {
  Pipeline pipeline = make_local_pipeline(mlp(), parse_csv("0F0,0B0\n1F0,1B0\n"));
  pipeline.set_handler(Kind::B, [](const ActionContext& context) {
    context.run_part(make_action(context.cell[0].stage, Kind::F, 0));
  });
  EXPECT_THROW(pipeline.step(presplit(mlp().data(1))), StepError);
}

TEST(Handler, SeesWhatItsActionIsPartOf) {
  const auto data = mlp().data(2);
  Pipeline pipeline = make_local_pipeline(mlp(), parse_csv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"));
  std::atomic<int> calls = 0;
  const auto look = [&](const ActionContext& context) {
    ++calls;
    ASSERT_EQ(context.cell.size(), 1U);
    const Action action = context.cell[0];
    EXPECT_EQ(context.rank, action.stage);
    EXPECT_EQ(context.plan, pipeline.plan());
    ASSERT_EQ(context.microbatches.size(), 2U);
    EXPECT_TRUE(context.microbatches[1].inputs.at(0).is_same(data[1].inputs[0]));
    EXPECT_EQ(&context.stage(action.stage), &pipeline.stage(action.stage));
    EXPECT_THROW(context.stage(1 - action.stage), ArgumentError);
    ASSERT_EQ(context.losses.size(), 2U);
    if (action.stage == 1) {
      EXPECT_EQ(context.losses[action.microbatch].defined(), action.kind == Kind::B);
      context.run();
      EXPECT_TRUE(context.losses[action.microbatch].defined());
    } else {
      context.run();
    }
  };
  pipeline.set_handler(Kind::F, look);
  pipeline.set_handler(Kind::B, look);
  pipeline.step(presplit(data));
  EXPECT_EQ(calls, 8);
}

TEST(Handler, CanStandInForAReduction) {
  // What a data-parallel user does: all gradients of a stage are there when REDUCE_GRAD runs.
  const Model model = mlp();
  const auto data = model.data(4);
  Unsplit unsplit(model);
  unsplit.run(data);
  Gradients expected = unsplit.gradients();
  for (auto& [name, gradient] : expected) gradient = gradient * 0.5;
  for (const char* name : {"1F1B", "ZBVZeroBubble", "DualPipeV"}) {
    Pipeline pipeline =
        make_local_pipeline(model, make_schedule({.name = name, .ranks = 2, .microbatches = 4}));
    pipeline.set_handler(Kind::ReduceGrad, [](const ActionContext& context) {
      const torch::NoGradGuard no_grad;
      for (at::Tensor& parameter : context.stage(context.cell[0].stage).module->parameters()) {
        parameter.mutable_grad().mul_(0.5);
      }
    });
    pipeline.step(presplit(data));
    expect_gradients(pipeline, expected);
  }
}

TEST(Handler, ThatReplacesComputeLeavesNothingForTheNextStep) {
  // No forward or backward runs, so messages are empty; once restored, all is as before.
  const Model model = mlp();
  const auto data = model.data(3);
  Unsplit unsplit(model);
  const auto expected = unsplit.run(data);
  Pipeline pipeline =
      make_local_pipeline(model, make_schedule({.name = "ZB-H1", .ranks = 3, .microbatches = 3}));
  const Kind compute[] = {Kind::F, Kind::B, Kind::I, Kind::W};
  for (const Kind kind : compute) pipeline.set_handler(kind, [](const ActionContext&) {});
  for (int step = 0; step < 2; ++step) {
    const StepResult result = pipeline.step(presplit(data));
    EXPECT_FALSE(result.loss.defined());
  }
  for (const Kind kind : compute) pipeline.set_handler(kind, {});
  expect_losses(pipeline.step(presplit(data)), expected);
  expect_gradients(pipeline, unsplit.gradients());
}

}  // namespace
}  // namespace pipewright
