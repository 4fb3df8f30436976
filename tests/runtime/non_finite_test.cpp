#include <gtest/gtest.h>

#include <limits>

#include "pipewright/schedule/generate.h"
#include "runtime/compare.h"
#include "runtime/models.h"
#include "runtime/worlds.h"

namespace pipewright {
namespace {

/// Multiplies by the root of a weight, whose gradient is infinite where the weight is 0.
struct Root : torch::nn::Module {
  Root() { weight = register_parameter("weight", torch::ones({2})); }
  at::Tensor forward(const at::Tensor& x) { return x * weight.sqrt(); }
  at::Tensor weight;
};

Pipeline roots(const std::shared_ptr<World>& world = nullptr, int replicas = 1, bool sharded = false) {
  PipelineOptions options{.loss = [](const Values& outputs, const Values&) { return outputs[0].sum(); },
                          .timeout = std::chrono::seconds(30),
                          .world = world};
  options.data_parallel = replicas;
  options.sharded = sharded;
  return {make_schedule({.name = "ZB-H1", .ranks = 2, .microbatches = 3}),
          [](Stage) { return StageModel(std::make_shared<Root>()); }, options};
}

/// Ones, and in one of the microbatches, if any, something else.
Batch ones(std::size_t count, std::size_t where = std::numeric_limits<std::size_t>::max(), double value = 0) {
  Batch batch;
  for (std::size_t k = 0; k < count; ++k) {
    batch.microbatches.push_back({{torch::full({2}, k == where ? value : 1.0)}, {}, {}});
  }
  return batch;
}

/// Makes the gradient of the second stage's weight infinite, and the losses 0.
void break_weight(Pipeline& pipeline, double value) {
  const torch::NoGradGuard no_grad;
  for (const auto& [name, parameter] : pipeline.named_parameters()) {
    if (name == "1.weight") at::Tensor(parameter).fill_(value);
  }
}

std::string refusal_of(Pipeline& pipeline, const Batch& batch) {
  try {
    pipeline.step(batch, {.non_finite = NonFinite::Stop});
  } catch (const NonFiniteError& error) {
    return error.what();
  }
  return "nothing";
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(NonFiniteNumbers, AreNamedAndStopTheStep) {
  Pipeline pipeline = roots();
  EXPECT_EQ(refusal_of(pipeline, ones(3)), "nothing");
  pipeline.zero_grad();
  EXPECT_EQ(refusal_of(pipeline, ones(3, 1, kNan)), "the loss of microbatch 1 (stage 1, rank 1) is nan");
  EXPECT_EQ(refusal_of(pipeline, ones(3, 2, kInf)), "the loss of microbatch 2 (stage 1, rank 1) is inf");
  break_weight(pipeline, 0);
  EXPECT_EQ(refusal_of(pipeline, ones(3)), "the gradient of '1.weight' (stage 1, rank 1) has an inf");
  for (const at::Tensor& each : pipeline.parameters()) EXPECT_FALSE(each.grad().defined());
  EXPECT_EQ(pipeline.skipped_steps(), 3);
}

TEST(NonFiniteNumbers, AreNotLookedAtUnlessItIsAskedFor) {
  Pipeline pipeline = roots();
  const StepResult result = pipeline.step(ones(3, 1, kNan));
  EXPECT_TRUE(std::isnan(result.loss.item<double>()));
  EXPECT_TRUE(result.skipped_for.empty());
  EXPECT_EQ(pipeline.skipped_steps(), 0);
}

TEST(NonFiniteNumbers, OfASkippedStepLeaveEarlierGradientsAlone) {
  Pipeline pipeline = roots();
  const StepOptions skip{.non_finite = NonFinite::Skip};
  EXPECT_EQ(pipeline.step(ones(3), skip).skipped_for, "");
  EXPECT_EQ(pipeline.step(ones(3, 0, kInf), skip).skipped_for,
            "the loss of microbatch 0 (stage 1, rank 1) is inf");
  EXPECT_EQ(pipeline.step(ones(3), skip).skipped_for, "");
  EXPECT_EQ(pipeline.skipped_steps(), 1);
  // Half for each element and step that counted.
  for (const at::Tensor& each : pipeline.parameters()) {
    EXPECT_TRUE(torch::allclose(each.grad(), torch::full({2}, 1.0))) << each.grad();
  }
}

TEST(NonFiniteNumbers, AreSkippedWithTiedParametersToo) {
  const Model model = gpt();
  Pipeline pipeline =
      make_local_pipeline(model, make_schedule({.name = "1F1B", .ranks = 2, .microbatches = 2}));
  Unsplit unsplit(model);
  const auto data = model.data(2);
  const StepOptions skip{.non_finite = NonFinite::Skip};
  unsplit.run(data);
  unsplit.run(data);
  pipeline.step(presplit(data), skip);
  {
    const torch::NoGradGuard no_grad;
    at::Tensor bias = pipeline.state_dict().at("l1.up.bias");
    const at::Tensor before = bias.clone();
    bias.fill_(kNan);
    EXPECT_NE(pipeline.step(presplit(data), skip).skipped_for, "");
    bias.copy_(before);
  }
  pipeline.step(presplit(data), skip);
  expect_gradients(pipeline, unsplit.gradients());
}

TEST(WorldNonFiniteNumbers, AreTheSameForAllProcesses) {
  for (const bool sharded : {false, true}) {
    expect_no_errors(in_worlds(4, [&](const WorldPtr& world) {
      Pipeline pipeline = roots(world, 2, sharded);
      const StepOptions skip{.non_finite = NonFinite::Skip};
      EXPECT_EQ(pipeline.step(ones(3), skip).skipped_for, "");
      // Only the second replica's data are bad; its microbatches come after those of the first.
      const bool second = pipeline.replicas().front() == 1;
      EXPECT_EQ(pipeline.step(second ? ones(3, 1, kNan) : ones(3), skip).skipped_for,
                "process 0: the loss of microbatch 4 (stage 1, rank 1) is nan");
      break_weight(pipeline, 0);
      EXPECT_EQ(pipeline.step(ones(3), skip).skipped_for,
                "process 2: the gradient of '1.weight' (stage 1, rank 1) has an inf");
      break_weight(pipeline, 1);
      EXPECT_EQ(pipeline.step(ones(3), skip).skipped_for, "");
      EXPECT_EQ(pipeline.skipped_steps(), 2);
      for (const at::Tensor& each : pipeline.parameters()) {
        EXPECT_TRUE(torch::allclose(each.grad(), torch::full({each.numel()}, 1.0))) << each.grad();
      }
    }));
  }
}

}  // namespace
}  // namespace pipewright
