// Steps as CUDA graphs. All of them skip where there is no device, but for the first.

#include <gtest/gtest.h>

#include "pipewright/schedule/generate.h"
#include "runtime/on_cuda.h"
#include "runtime/training_schedules.h"

namespace pipewright {
namespace {

TEST(CaptureWithoutADevice, IsRefusedAndStepsRunAsTheyWould) {
  if (test_world()) GTEST_SKIP() << "it is for one process";
  const OnDevice cpu(at::kCPU);
  const Model model = mlp();
  PipelineOptions options = options_for(model);
  options.cuda_graph = true;
  const auto schedule = make_schedule({.name = "1F1B", .ranks = 2, .microbatches = 4});
  Pipeline pipeline(schedule, cut(model, 2), options);
  Unsplit unsplit(model);
  const auto data = model.data(4);
  const auto expected = unsplit.run(data);
  const StepResult result = pipeline.step(presplit(data));
  EXPECT_FALSE(result.replayed);
  EXPECT_EQ(pipeline.not_captured_for(), "rank 0 is on cpu");
  expect_losses(result, expected);
  expect_gradients(pipeline, unsplit.gradients());
}

class Capture : public OnCuda, public testing::WithParamInterface<ScheduleInfo> {};
INSTANTIATE_TEST_SUITE_P(Every, Capture, testing::ValuesIn(training_schedules()), schedule_test_name);

TEST_P(Capture, GivesTheLossesAndGradientsOfTheUnsplitModel) {
  for (const Rank ranks : {1, 2, 3, 4}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    for (const Model& model : {mlp(), gpt()}) {
      SCOPED_TRACE(model.name);
      Pipeline pipeline = make(model, make_schedule(GetParam(), ranks, 4));
      EXPECT_TRUE(expect_steps(pipeline, model, 5).replayed) << pipeline.not_captured_for();
    }
  }
}

TEST_P(Capture, RunsOtherwiseWhatItCannotRecord) {
  for (const Model& model : every_model()) {
    SCOPED_TRACE(model.name);
    Pipeline pipeline = make(model, make_schedule(GetParam(), 2, 3));
    const bool replayed = expect_steps(pipeline, model, 4).replayed;
    EXPECT_EQ(replayed, pipeline.not_captured_for().empty()) << pipeline.not_captured_for();
  }
}

TEST_P(Capture, IsNotNeededForManyRanksOnOneDevice) {
  for (const Rank ranks : {1, 2, 4}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    Pipeline pipeline = make(mlp(), make_schedule(GetParam(), ranks, 4), /*cuda_graph=*/false);
    EXPECT_FALSE(expect_steps(pipeline, mlp(), 3).replayed);
  }
}

class ReplayedSteps : public OnCuda {};

TEST_F(ReplayedSteps, AddToTheGradientsThatAreThere) {
  const Model model = mlp();
  Pipeline pipeline = make(model, interleaved());
  Unsplit unsplit(model);
  for (int step = 0; step < 6; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    const auto data = data_of_step(model, 4, step);
    unsplit.run(data);
    EXPECT_EQ(pipeline.step(presplit(data)).replayed, step >= 2);
    expect_gradients(pipeline, unsplit.gradients());
  }
}

TEST_F(ReplayedSteps, SkipWhatIsNotFiniteAndKeepEarlierGradients) {
  const Model model = mlp();
  Pipeline pipeline = make(model, interleaved());
  expect_steps(pipeline, model, 4);
  Gradients before;
  for (const auto& [name, parameter] : pipeline.named_parameters()) before[name] = parameter.grad().clone();
  auto data = model.data(4);
  data[2].inputs[0].fill_(std::numeric_limits<float>::infinity());
  const StepResult result = pipeline.step(presplit(data), {.non_finite = NonFinite::Skip});
  EXPECT_TRUE(result.replayed);
  EXPECT_FALSE(result.skipped_for.empty());
  expect_gradients(pipeline, before);
}

TEST_F(ReplayedSteps, AreRecordedAgainForOtherShapes) {
  const Model model = mlp();
  Pipeline pipeline = make(model, interleaved());
  for (int round = 0; round < 2; ++round) {
    for (const Microbatch rows : {1, 2, 3, 4, 5, 6}) {
      for (int step = 0; step < 4; ++step) {
        std::vector<MicrobatchValues> data = data_of_step(model, 4, step);
        for (MicrobatchValues& microbatch : data) {
          for (Values* values : {&microbatch.inputs, &microbatch.targets}) {
            for (at::Tensor& value : *values) value = value.repeat({rows, 1});
          }
        }
        Unsplit unsplit(model);
        const auto expected = unsplit.run(data);
        pipeline.zero_grad();
        const StepResult result = pipeline.step(presplit(data));
        EXPECT_EQ(result.replayed, step >= 2);
        expect_losses(result, expected);
        expect_gradients(pipeline, unsplit.gradients());
      }
    }
  }
}

TEST_F(ReplayedSteps, GiveOutputsThatStay) {
  const Model model = mlp();
  Pipeline pipeline = make(model, interleaved());
  std::vector<Values> outputs;
  std::vector<Values> expected;
  for (int step = 0; step < 5; ++step) {
    const auto data = data_of_step(model, 4, step);
    Unsplit unsplit(model);
    Values rows;
    for (const Values& each : unsplit.run(data).outputs) rows.push_back(each.at(0).detach());
    expected.push_back({torch::cat(rows)});
    outputs.push_back(pipeline.step(presplit(data), {.outputs = true}).outputs);
  }
  for (int step = 0; step < 5; ++step) EXPECT_TRUE(close(outputs[step].at(0), expected[step].at(0))) << step;
}

/// Counts and normalises: buffers that every step changes.
TEST_F(ReplayedSteps, ChangeBuffersAsStepsDo) {
  Model model = mlp();
  const std::int64_t width = model.data(1)[0].inputs[0].size(1);
  model.layers.insert(model.layers.begin(), wrap<torch::nn::BatchNorm1d>(width));
  const auto schedule = make_schedule({.name = "GPipe", .ranks = 2, .microbatches = 4});
  Pipeline captured = make(model, schedule);
  Pipeline eager = make(model, schedule, /*cuda_graph=*/false);
  for (int step = 0; step < 5; ++step) {
    const auto data = data_of_step(model, 4, step);
    EXPECT_EQ(captured.step(presplit(data)).replayed, step >= 2) << captured.not_captured_for();
    eager.step(presplit(data));
  }
  const Pipeline::StateDict expected = eager.state_dict();
  for (const auto& [name, value] : captured.state_dict())
    EXPECT_TRUE(close(value, expected.at(name))) << name;
}

TEST_F(ReplayedSteps, DrawNewRandomNumbersEachTime) {
  Model model = mlp();
  model.layers.insert(model.layers.begin() + 1, wrap<torch::nn::Dropout>(0.5));
  const auto schedule = make_schedule({.name = "1F1B", .ranks = 1, .microbatches = 4});
  const auto losses = [&](bool cuda_graph) {
    Pipeline pipeline = make(model, schedule, cuda_graph);
    torch::manual_seed(5);
    std::vector<double> all;
    for (int step = 0; step < 6; ++step) {
      const StepResult result = pipeline.step(presplit(model.data(4)));
      EXPECT_EQ(result.replayed, cuda_graph && step >= 2);
      all.push_back(result.loss.item<double>());
    }
    return all;
  };
  const std::vector<double> captured = losses(true);
  EXPECT_EQ(captured, losses(false));
  EXPECT_NE(captured[4], captured[5]);
}

TEST_F(ReplayedSteps, FollowTheModeOfTheModules) {
  Model model = mlp();
  model.layers.insert(model.layers.begin() + 1, wrap<torch::nn::Dropout>(0.999));
  Pipeline pipeline = make(model, make_schedule({.name = "1F1B", .ranks = 1, .microbatches = 4}));
  const auto data = model.data(4);
  for (int step = 0; step < 4; ++step) pipeline.step(presplit(data));
  pipeline.train(false);
  pipeline.zero_grad();
  const StepResult result = pipeline.step(presplit(data));
  EXPECT_FALSE(result.replayed);
  pipeline.train(true);
  EXPECT_TRUE(pipeline.step(presplit(data)).replayed);
}

TEST_F(ReplayedSteps, SayWhatCannotBeRecorded) {
  Model model = mlp();
  bool looks = false;
  model.layers.push_back(function([&](const Values& inputs) {
    if (looks) inputs.at(0).sum().item<double>();
    return inputs;
  }));
  Pipeline pipeline = make(model, interleaved());
  looks = true;
  EXPECT_FALSE(expect_steps(pipeline, model, 4).replayed);
  EXPECT_NE(pipeline.not_captured_for().find("cannot be recorded"), std::string::npos);
  EXPECT_NE(pipeline.not_captured_for().find("rank 1"), std::string::npos) << pipeline.not_captured_for();

  // What failed leaves nothing behind.
  EXPECT_FALSE(torch::rand({4}, test_device()).equal(torch::rand({4}, test_device())));
  looks = false;
  Pipeline other = make(model, interleaved());
  EXPECT_TRUE(expect_steps(other, model, 4).replayed) << other.not_captured_for();

  other.set_handler(Kind::F, [](const ActionContext& context) { context.run(); });
  EXPECT_FALSE(expect_steps(other, model, 1).replayed);
  EXPECT_EQ(other.not_captured_for(), "a handler stands in for an action");
  other.set_handler(Kind::F, {});
  EXPECT_TRUE(expect_steps(other, model, 1).replayed);
  EXPECT_EQ(other.not_captured_for(), "");
  EXPECT_FALSE(other.step(presplit(model.data(4)), {.trace = true}).replayed);
}

TEST_F(ReplayedSteps, AreNotRecordedWhileAnotherGraphHoldsAParameter) {
  const Model model = mlp();
  Pipeline pipeline = make(model, interleaved());
  at::Tensor held = pipeline.parameters().front().clone();  // with a way back to the parameter
  EXPECT_FALSE(expect_steps(pipeline, model, 4).replayed);
  EXPECT_NE(pipeline.not_captured_for().find("detach()"), std::string::npos) << pipeline.not_captured_for();
  held = held.detach();
  EXPECT_TRUE(expect_steps(pipeline, model, 1).replayed) << pipeline.not_captured_for();
  held = pipeline.parameters().front().clone();
  EXPECT_TRUE(expect_steps(pipeline, model, 1).replayed) << "there is a graph already";
}

}  // namespace
}  // namespace pipewright
