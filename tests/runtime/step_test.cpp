#include <gtest/gtest.h>

#include "pipewright/base/error.h"
#include "pipewright/schedule/csv.h"
#include "pipewright/schedule/generate.h"
#include "runtime/compare.h"
#include "runtime/models.h"

namespace pipewright {
namespace {

// The last stage's forwards run as 2 0 1.
constexpr const char* kOutOfOrder =
    "0F2,0F0,0F1,0B2,0B0,0B1\n"
    "1F2,1B2,1F0,1B0,1F1,1B1\n";

TEST(Step, PairsEachLossWithItsOwnTargetWhateverTheOrder) {
  const auto data = mlp().data(3);
  Unsplit unsplit(mlp());
  const auto expected = unsplit.run(data);
  Pipeline pipeline = make_pipeline(mlp(), parse_csv(kOutOfOrder));
  const StepResult result = pipeline.step(presplit(data), {.outputs = true});
  expect_losses(result, expected);
  expect_gradients(pipeline, unsplit.gradients());
  ASSERT_EQ(result.outputs.size(), 1U);
  EXPECT_TRUE(close(result.outputs[0],
                    torch::cat({expected.outputs[0][0], expected.outputs[1][0], expected.outputs[2][0]})));
}

TEST(Step, DividesByTheDenominator) {
  const auto data = mlp().data(3);
  Unsplit unsplit(mlp());
  Pipeline pipeline = make_pipeline(mlp(), parse_csv(kOutOfOrder));
  expect_losses(pipeline.step(presplit(data), {.denominator = 7.5}), unsplit.run(data, 7.5));
  expect_gradients(pipeline, unsplit.gradients());
  // Over several steps only the gradients are divided further.
  expect_losses(pipeline.step(presplit(data), {.denominator = 2, .accumulation = 3}),
                unsplit.run(data, 2, 3));
  expect_gradients(pipeline, unsplit.gradients());
}

TEST(Step, GivesDetachedLosses) {
  Pipeline pipeline = make_pipeline(mlp(), parse_csv(kOutOfOrder));
  const StepResult result = pipeline.step(presplit(mlp().data(3)), {.outputs = true});
  EXPECT_FALSE(result.loss.requires_grad());
  for (const at::Tensor& loss : result.losses) EXPECT_FALSE(loss.requires_grad());
  for (const at::Tensor& output : result.outputs) EXPECT_FALSE(output.requires_grad());
}

TEST(Step, KeepsNoOutputsAndNoTimesUnlessAskedTo) {
  Pipeline pipeline = make_pipeline(mlp(), parse_csv(kOutOfOrder));
  const StepResult result = pipeline.step(presplit(mlp().data(3)));
  EXPECT_TRUE(result.outputs.empty());
  EXPECT_TRUE(result.timeline.ranks.empty());
}

TEST(Step, AddsToTheGradients) {
  const auto data = mlp().data(3);
  Pipeline pipeline = make_pipeline(mlp(), parse_csv(kOutOfOrder));
  pipeline.step(presplit(data));
  Gradients twice;
  for (const auto& [name, parameter] : pipeline.named_parameters()) twice[name] = parameter.grad() * 2;
  pipeline.step(presplit(data));
  expect_gradients(pipeline, twice);
  pipeline.zero_grad();
  for (const auto& [name, parameter] : pipeline.named_parameters()) {
    EXPECT_TRUE(!parameter.grad().defined() || parameter.grad().abs().max().item<double>() == 0) << name;
  }
}

TEST(Step, LeavesTheUsersTensorsAlone) {
  const auto data = mlp().data(3);
  const at::Tensor before = data[1].inputs[0].clone();
  Pipeline pipeline = make_pipeline(mlp(), parse_csv(kOutOfOrder));
  pipeline.step(presplit(data));
  EXPECT_TRUE(data[1].inputs[0].equal(before));
  EXPECT_FALSE(data[1].inputs[0].requires_grad());
}

/// Data with microbatches side by side in the second dimension.
Batch wide_batch(const std::vector<MicrobatchValues>& data, bool inputs_too) {
  Batch batch;
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> targets;
  for (const MicrobatchValues& each : data) {
    inputs.push_back(inputs_too ? each.inputs[0].t() : each.inputs[0]);
    targets.push_back(each.targets[0].t());
  }
  batch.inputs = {torch::cat(inputs, inputs_too ? 1 : 0)};
  batch.targets = {torch::cat(targets, 1)};
  return batch;
}

std::vector<MicrobatchValues> even_data(Microbatch count) {
  auto data = mlp().data(count);
  for (MicrobatchValues& each : data) {
    each.inputs[0] = each.inputs[0].slice(0, 0, 2);
    each.targets[0] = each.targets[0].slice(0, 0, 2);
  }
  return data;
}

TEST(Step, SplitsTargetsAlongAnotherDimensionThanInputs) {
  const auto data = even_data(3);
  Unsplit unsplit(mlp());
  const auto expected = unsplit.run(data);
  PipelineOptions options = options_for(mlp());
  options.split.targets = {Chunk::along(1)};
  options.loss = [](const Values& outputs, const Values& targets) {
    return squared_error(outputs, {targets.at(0).t()});
  };
  Pipeline pipeline(parse_csv(kOutOfOrder), cut(mlp(), 2), options);
  expect_losses(pipeline.step(wide_batch(data, false)), expected);
  expect_gradients(pipeline, unsplit.gradients());
}

TEST(Step, SplitsAsToldOnLoopedBfs) {
  const auto data = even_data(3);
  Unsplit unsplit(mlp());
  const auto expected = unsplit.run(data);
  PipelineOptions options = options_for(mlp());
  options.split.inputs = {Chunk::along(1), Chunk::replicate()};
  options.split.targets = {Chunk::along(-1)};
  options.merge = {merge_along(0)};
  options.loss = [](const Values& outputs, const Values& targets) {
    return squared_error(outputs, {targets.at(0).t()});
  };
  const Schedule schedule = make_schedule({.name = "LoopedBFS", .ranks = 2, .microbatches = 3});
  const StageFactory build = [&](Stage stage) {
    StageModel made = cut(mlp(), schedule.stage_count())(stage);
    if (stage != 0) return made;
    made.forward = [inner = made.forward](const Values& inputs) {
      return inner({inputs.at(0).t() * inputs.at(1)});
    };
    return made;
  };
  Pipeline pipeline(schedule, build, options);
  Batch batch = wide_batch(data, true);
  batch.inputs.push_back(torch::ones({3}, test_device()));
  const StepResult result = pipeline.step(batch, {.outputs = true});
  expect_losses(result, expected);
  expect_gradients(pipeline, unsplit.gradients());
  EXPECT_TRUE(close(result.outputs.at(0),
                    torch::cat({expected.outputs[0][0], expected.outputs[1][0], expected.outputs[2][0]})));
}

TEST(Step, MergesOutputsAsTold) {
  const auto data = even_data(3);
  Unsplit unsplit(mlp());
  const auto expected = unsplit.run(data);
  PipelineOptions options = options_for(mlp());
  options.merge = {merge_mean()};
  Pipeline pipeline(parse_csv(kOutOfOrder), cut(mlp(), 2), options);
  const StepResult result = pipeline.step(presplit(data), {.outputs = true});
  const at::Tensor sum = expected.outputs[0][0] + expected.outputs[1][0] + expected.outputs[2][0];
  EXPECT_TRUE(close(result.outputs.at(0), sum / 3));
}

TEST(Step, RefusesABatchThatDoesNotFit) {
  Pipeline pipeline = make_local_pipeline(mlp(), parse_csv(kOutOfOrder));
  EXPECT_THROW(pipeline.step(presplit(mlp().data(2))), ArgumentError);
  EXPECT_THROW(pipeline.step({numbers(1, {2, 3})}, {numbers(2, {2, 9})}), ArgumentError);
  const auto data = mlp().data(3);
  Unsplit unsplit(mlp());
  expect_losses(pipeline.step(presplit(data)), unsplit.run(data));
  expect_gradients(pipeline, unsplit.gradients());
}

TEST(Step, RefusesALossThatIsNotOneNumber) {
  PipelineOptions options = options_for(mlp());
  options.loss = [](const Values& outputs, const Values&) { return outputs.at(0); };
  Pipeline pipeline(parse_csv(kOutOfOrder), cut(mlp(), 2), options);
  try {
    pipeline.step(presplit(mlp().data(3)));
    FAIL() << "no error";
  } catch (const StepError& error) {
    EXPECT_EQ(to_text(error.action), "1F2");
  }
}

TEST(Step, RefusesAScheduleWithoutBackwards) {
  Pipeline pipeline =
      make_pipeline(mlp(), make_schedule({.name = "ForwardOnly", .ranks = 2, .microbatches = 3}));
  EXPECT_THROW(pipeline.step(presplit(mlp().data(3))), Error);
}

TEST(Pipeline, RefusesSchedulesThatAreNotValidOrCouldDeadlock) {
  for (const char* csv : {"0B0,0F0\n",          // out of order
                          "0F0,0B0\n1F0\n",     // a backward is missing
                          "1F0,1B0,0F0,0B0\n",  // a stage before its predecessor
                          "0F0,2F0,2B0,0B0\n",  // a stage is missing
                          "0F0,0F1,0B0,0B1\n1F1,1B1,1RECV_F0,1F0,1B0\n",
                          // The ranks wait for each other's data.
                          "0F0,0SEND_F0,0RECV_B0,0B0,0F1,0SEND_F1,0RECV_B1,0B1\n"
                          "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n"}) {
    EXPECT_THROW(make_pipeline(mlp(), parse_csv(csv)), InvalidSchedule) << csv;
  }
}

TEST(Pipeline, RunsPlansWhoseMessagesHaveToWaitInTheirChannel) {
  // Both ranks send before they receive: with sends that block, they would hang.
  expect_parity(mlp(), parse_csv("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0RECV_B1,0B0,0B1\n"
                                 "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n"));
}

TEST(Pipeline, CanBeMoved) {
  const auto data = mlp().data(3);
  Unsplit unsplit(mlp());
  Pipeline first = make_pipeline(mlp(), parse_csv(kOutOfOrder));
  first.step(presplit(data));
  Pipeline second = std::move(first);
  second.zero_grad();
  expect_losses(second.step(presplit(data)), unsplit.run(data));
  expect_gradients(second, unsplit.gradients());
}

}  // namespace
}  // namespace pipewright
