#include <gtest/gtest.h>

#include <chrono>
#include <cstring>

#include "pipewright/schedule/csv.h"
#include "runtime/compare.h"
#include "runtime/faults.h"
#include "runtime/training_schedules.h"

namespace pipewright {
namespace {

void expect_text(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
}

/// That the error says where, and holds what the test threw.
void expect_thrown_at(const StepError& error, const Schedule& schedule, Stage stage, Microbatch microbatch) {
  const Rank rank = schedule.placement[static_cast<std::size_t>(stage)];
  EXPECT_EQ(error.rank, rank);
  EXPECT_EQ(error.action.stage, stage);
  EXPECT_EQ(static_cast<Microbatch>(error.action.microbatch), microbatch);
  expect_text(error.what(), "rank " + std::to_string(rank));
  expect_text(error.what(), "stage " + std::to_string(stage));
  expect_text(error.what(), to_text(error.action));
  ASSERT_TRUE(error.cause);
  try {
    std::rethrow_exception(error.cause);
  } catch (const std::exception& cause) {
    expect_text(cause.what(), "thrown in a");
    EXPECT_NE(dynamic_cast<const Thrown*>(&cause), nullptr) << "thrown as " << typeid(cause).name();
    expect_text(error.what(), cause.what());
  }
}

class Failure : public testing::TestWithParam<ScheduleInfo> {};
INSTANTIATE_TEST_SUITE_P(Every, Failure, testing::ValuesIn(training_schedules()), schedule_test_name);

TEST_P(Failure, OfAnyStageIsNamedAndTheNextStepIsRight) {
  const Schedule schedule = make_schedule(GetParam(), 3, 4);
  const auto fault = std::make_shared<Fault>();
  const Model model = faulty_model(fault, schedule.stage_count());
  const auto data = model.data(4);
  Unsplit unsplit(model);
  const auto expected = unsplit.run(data);
  Pipeline pipeline = make_local_pipeline(model, schedule);

  for (Stage stage = 0; stage < schedule.stage_count(); ++stage) {
    for (const auto place : {Fault::Forward, Fault::InputGradient, Fault::WeightGradient}) {
      for (const Microbatch microbatch : {0, 2, 3}) {
        SCOPED_TRACE("place " + std::to_string(place) + " of stage " + std::to_string(stage) +
                     ", microbatch " + std::to_string(microbatch));
        fault->arm(place, stage, microbatch);
        const StepError error = failure_of(pipeline, data);
        expect_thrown_at(error, schedule, stage, microbatch);
        EXPECT_EQ(error.action.kind == Kind::F, place == Fault::Forward);
        EXPECT_TRUE(place != Fault::InputGradient || gives_input_grad(error.action.kind));

        fault->arm(Fault::Nowhere, 0, 0);
        pipeline.zero_grad();
        expect_losses(pipeline.step(presplit(data)), expected);
        expect_gradients(pipeline, unsplit.gradients());
      }
    }
  }
}

TEST_P(Failure, OfTheLossIsThatOfTheLastForward) {
  const Schedule schedule = make_schedule(GetParam(), 2, 3);
  Model model = mlp();
  model.loss = [](const Values& outputs, const Values& targets) {
    if (microbatch_now() == 1) throw Thrown("thrown in a loss");
    return squared_error(outputs, targets);
  };
  Pipeline pipeline = make_local_pipeline(model, schedule);
  const StepError error = failure_of(pipeline, model.data(3));
  expect_thrown_at(error, schedule, schedule.last_stage(), 1);
  EXPECT_EQ(error.action.kind, Kind::F);
}

TEST_P(Failure, OfAHandlerIsThatOfItsAction) {
  const Schedule schedule = make_schedule(GetParam(), 2, 3);
  const Model model = mlp();
  const auto data = model.data(3);
  Unsplit unsplit(model);
  const auto expected = unsplit.run(data);
  Pipeline pipeline = make_local_pipeline(model, schedule);
  for (const Kind kind : {Kind::F, Kind::B, Kind::I, Kind::W, Kind::SendF, Kind::RecvF, Kind::SendB,
                          Kind::RecvB, Kind::Unshard, Kind::Reshard, Kind::ReduceGrad}) {
    const Schedule& plan = pipeline.plan();
    const bool planned = std::any_of(plan.ranks.begin(), plan.ranks.end(), [kind](const auto& actions) {
      return std::any_of(actions.begin(), actions.end(), [kind](Action a) { return a.kind == kind; });
    });
    if (!planned) continue;
    SCOPED_TRACE(std::string(to_text(kind)));
    pipeline.set_handler(kind, [](const ActionContext&) { throw Thrown("thrown in a handler"); });
    const StepError error = failure_of(pipeline, data);
    EXPECT_EQ(error.action.kind, kind);
    expect_thrown_at(error, plan, error.action.stage, static_cast<Microbatch>(error.action.microbatch));
    pipeline.set_handler(kind, {});
    pipeline.zero_grad();
    expect_losses(pipeline.step(presplit(data)), expected);
    expect_gradients(pipeline, unsplit.gradients());
  }
}

TEST(StepFailure, OfTheFirstStageEndsTheWaitOfAllOthers) {
  const Schedule schedule = make_schedule({.name = "1F1B", .ranks = 4, .microbatches = 4});
  const auto fault = std::make_shared<Fault>();
  const Model model = faulty_model(fault, 4);
  PipelineOptions options = options_for(model);
  options.timeout = std::chrono::minutes(2);
  Pipeline pipeline(schedule, cut(model, 4), options);
  fault->arm(Fault::Forward, 0, 0);
  const auto start = std::chrono::steady_clock::now();
  expect_thrown_at(failure_of(pipeline, model.data(4)), schedule, 0, 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(StepFailure, KeepsCausesThatAreNoStandardExceptions) {
  Pipeline pipeline(parse_csv("0F0,0B0\n1F0,1B0\n"), [](Stage stage) {
    if (stage == 0) return StageModel();
    return StageModel([](const at::Tensor& x) -> at::Tensor {
      if (x.defined()) throw 42;
      return x;
    });
  });
  const StepError error = failure_of(pipeline, mlp().data(1));
  EXPECT_EQ(error.rank, 1);
  EXPECT_THROW(std::rethrow_exception(error.cause), int);
}

TEST(StepFailure, OfTorchIsShownWithoutItsStack) {
  Pipeline pipeline(
      parse_csv("0F0,0B0\n1F0,1B0\n"),
      [](Stage) { return StageModel([](const at::Tensor& x) { return x.view({-1, 1000}).sum(); }); },
      {.timeout = std::chrono::seconds(30)});
  const StepError error = failure_of(pipeline, mlp().data(1));
  EXPECT_EQ(to_text(error.action), "0F0");
  expect_text(error.what(), "[-1, 1000]");
  EXPECT_EQ(std::string(error.what()).find("frame #"), std::string::npos) << error.what();
  EXPECT_THROW(std::rethrow_exception(error.cause), c10::Error);
}

TEST(StepFailure, OfAnEvalLeavesThePipelineUsable) {
  const Schedule schedule = make_schedule({.name = "ZBVZeroBubble", .ranks = 2, .microbatches = 3});
  const auto fault = std::make_shared<Fault>();
  const Model model = faulty_model(fault, 4);
  const auto data = model.data(3);
  Unsplit unsplit(model);
  const auto expected = unsplit.run(data);
  Pipeline pipeline = make_local_pipeline(model, schedule);
  for (const Stage stage : {0, 1, 2, 3}) {
    fault->arm(Fault::Forward, stage, 1);
    try {
      pipeline.eval(presplit(data));
      ADD_FAILURE() << "the eval succeeded";
    } catch (const StepError& error) {
      expect_thrown_at(error, schedule, stage, 1);
    }
    fault->arm(Fault::Nowhere, 0, 0);
    expect_losses(pipeline.eval(presplit(data)), expected);
    expect_losses(pipeline.step(presplit(data)), expected);
    expect_gradients(pipeline, unsplit.gradients());
    pipeline.zero_grad();
  }
}

TEST(StepFailure, OfAStageWithTheWrongNumberOfValuesSaysHowMany) {
  Pipeline pipeline(parse_csv("0F0,0B0\n1F0,1B0\n"), [](Stage stage) {
    if (stage == 0) return StageModel([](const at::Tensor& x) { return Values{x, x}; });
    return StageModel([](const at::Tensor& x) { return x.sum(); });
  });
  const StepError error = failure_of(pipeline, mlp().data(1));
  EXPECT_EQ(to_text(error.action), "1F0");
  expect_text(error.what(), "takes 1 values, got 2");
}

}  // namespace
}  // namespace pipewright
