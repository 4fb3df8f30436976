// Values that go past stages, directly to those that take them.

#include <gtest/gtest.h>

#include "pipewright/base/error.h"
#include "pipewright/schedule/csv.h"
#include "pipewright/schedule/lower.h"
#include "runtime/compare.h"
#include "runtime/models.h"
#include "runtime/training_schedules.h"
#include "runtime/worlds.h"

namespace pipewright {
namespace {

constexpr std::int64_t kUNetWidth = 5;

/// A stage of a U-Net: takes the output of the one before, then whatever else the routes bring it. Integers
/// are added as numbers, everything else is multiplied in.
class UNetStage : public torch::nn::Module {
 public:
  explicit UNetStage(Stage stage) : stage_(stage) {
    own_ = register_module("own", torch::nn::Linear(kUNetWidth, kUNetWidth));
    side_ = register_module("side", torch::nn::Linear(kUNetWidth, kUNetWidth));
    const torch::NoGradGuard no_grad;
    std::uint64_t seed = 100 * static_cast<std::uint64_t>(stage);
    for (at::Tensor& parameter : parameters()) {
      parameter.copy_(numbers(++seed, parameter.sizes()) * 0.5);
    }
    to(test_device());
  }

  /// Four values: what goes on, what goes across, what all take (a gradient comes back from several) and
  /// numbers without gradients.
  Values forward(const Values& inputs) {
    at::Tensor x = torch::tanh(own_->forward(inputs.at(0)));
    for (std::size_t at = 1; at < inputs.size(); ++at) {
      x = inputs[at].is_floating_point() ? x + inputs[at] * (0.5 + 0.1 * static_cast<double>(at))
                                         : x + inputs[at].to(x.dtype()) * 0.1;
    }
    const at::Tensor ids = torch::arange(kUNetWidth, torch::dtype(torch::kLong).device(x.device())) + stage_;
    return {x, torch::sigmoid(side_->forward(x)), x * x, ids};
  }

 private:
  Stage stage_;
  torch::nn::Linear own_ = nullptr;
  torch::nn::Linear side_ = nullptr;
};

/// Like a U-Net's: each stage of the second half takes something from its counterpart in the first; the first
/// stage's third output goes to all, its integers to every second; and the last takes one value twice.
Routes unet_routes(Stage stages) {
  Routes routes(static_cast<std::size_t>(stages));
  for (Stage stage = 1; stage < stages; ++stage) {
    std::vector<Source>& inputs = routes[static_cast<std::size_t>(stage)];
    inputs.push_back({stage - 1, 0});
    if (const Stage across = stages - 1 - stage; across < stage) inputs.push_back({across, 1});
    inputs.push_back({0, 2});
    if (stage % 2 == 0) inputs.push_back({0, 3});
    if (stage > 2) inputs.push_back({stage - 3, 2});
  }
  if (stages > 2) {
    routes.back().push_back({1, 1});
    routes.back().push_back({1, 1});
  }
  return routes;
}

struct UNetResult {
  Gradients gradients;
  std::vector<at::Tensor> losses;
  std::vector<Values> outputs;
};

std::vector<MicrobatchValues> unet_data(Microbatch microbatches) {
  std::vector<MicrobatchValues> data;
  for (std::uint64_t j = 0; std::cmp_less(j, microbatches); ++j) {
    data.push_back({{numbers(7 * j + 1, {3, kUNetWidth})}, {numbers(7 * j + 2, {3, kUNetWidth})}, {}});
  }
  return data;
}

/// The stages one after the other, as one model.
UNetResult run_unsplit(const Routes& routes, const std::vector<MicrobatchValues>& data) {
  std::vector<std::shared_ptr<UNetStage>> blocks;
  for (std::size_t stage = 0; stage < routes.size(); ++stage) {
    blocks.push_back(std::make_shared<UNetStage>(static_cast<Stage>(stage)));
  }
  UNetResult expected;
  for (const MicrobatchValues& each : data) {
    std::vector<Values> outputs;
    for (std::size_t stage = 0; stage < routes.size(); ++stage) {
      Values inputs = stage == 0 ? each.inputs : Values();
      for (const auto& [from, output] : routes[stage]) {
        inputs.push_back(outputs[static_cast<std::size_t>(from)][output]);
      }
      outputs.push_back(blocks[stage]->forward(inputs));
    }
    const at::Tensor loss = squared_error(outputs.back(), each.targets);
    expected.losses.push_back(loss.detach());
    expected.outputs.push_back(outputs.back());
    (loss / static_cast<double>(data.size())).backward();
  }
  for (std::size_t stage = 0; stage < blocks.size(); ++stage) {
    for (const auto& item : blocks[stage]->named_parameters()) {
      expected.gradients[std::to_string(stage) + "." + item.key()] = item.value().grad();
    }
  }
  return expected;
}

StageModel unet_stage(Stage stage) { return std::make_shared<UNetStage>(stage); }

PipelineOptions skipping_options(const Routes& routes) {
  PipelineOptions options;
  options.loss = squared_error;
  options.routes = routes;
  options.timeout = std::chrono::seconds(30);
  return options;
}

void expect_skipping_parity(const Schedule& schedule, const Routes& routes, PipelineOptions options) {
  const auto data = unet_data(schedule.microbatches);
  const UNetResult expected = run_unsplit(routes, data);
  Pipeline pipeline(schedule, unet_stage, in_world(std::move(options), schedule));
  const StepResult result = pipeline.step(presplit(data));
  ASSERT_EQ(result.losses.size(), expected.losses.size());
  for (std::size_t j = 0; j < data.size(); ++j) {
    EXPECT_TRUE(close(result.losses[j], expected.losses[j])) << "loss of microbatch " << j;
  }
  expect_gradients(pipeline, expected.gradients);
}

class SkippingParity : public testing::TestWithParam<ScheduleInfo> {};
INSTANTIATE_TEST_SUITE_P(Every, SkippingParity, testing::ValuesIn(training_schedules()), schedule_test_name);

TEST_P(SkippingParity, OfLossAndGradientsHoldsForAnyNumberOfRanksAndStages) {
  for (const Rank ranks : {1, 2, 3, 4}) {
    for (const int stages_per_rank : {1, 2, 3}) {
      if (stages_per_rank < GetParam().min_stages_per_rank ||
          stages_per_rank > GetParam().max_stages_per_rank) {
        continue;
      }
      for (const Microbatch microbatches : {1, 3, 6}) {
        SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(stages_per_rank) +
                     " stages a rank, " + std::to_string(microbatches) + " microbatches");
        const Schedule schedule = make_schedule({.name = std::string(GetParam().name),
                                                 .ranks = ranks,
                                                 .microbatches = microbatches,
                                                 .stages_per_rank = stages_per_rank});
        const Routes routes = unet_routes(schedule.stage_count());
        expect_skipping_parity(schedule, routes, skipping_options(routes));
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(SkippingParity, HoldsForPlansReadFromTextAndDeferredReceives) {
  const Schedule schedule = make_schedule(GetParam(), 4, 5);
  const Routes routes = unet_routes(schedule.stage_count());
  PipelineOptions options = skipping_options(routes);
  options.lower.defer_receives = true;
  expect_skipping_parity(schedule, routes, options);
  Schedule skipping = schedule;
  skipping.skips = skips_of(routes, schedule.stage_count());
  expect_skipping_parity(parse_csv(to_csv(lower(skipping))), routes, skipping_options(routes));
}

TEST_P(SkippingParity, OfOutputsHoldsWithoutGradients) {
  const Schedule schedule = make_schedule(GetParam(), 3, 2);
  const Routes routes = unet_routes(schedule.stage_count());
  const auto data = unet_data(5);
  const UNetResult expected = run_unsplit(routes, data);
  Pipeline pipeline(schedule, unet_stage, in_world(skipping_options(routes), schedule));
  const StepResult result = pipeline.eval(presplit(data), {.microbatches = 5});
  std::vector<at::Tensor> outputs;
  for (const Values& each : expected.outputs) outputs.push_back(each.front());
  EXPECT_TRUE(close(result.outputs.at(0), torch::cat(outputs).detach()));
}

Schedule four_unet_stages() { return make_schedule({.name = "1F1B", .ranks = 4, .microbatches = 3}); }

TEST(Routes, OfANeighbourAloneAreWhatThereIsWithoutThem) {
  Routes routes(4);
  for (Stage stage = 1; stage < 4; ++stage) {
    for (const std::size_t slot : {0U, 1U, 2U, 3U}) {
      routes[static_cast<std::size_t>(stage)].push_back({stage - 1, slot});
    }
  }
  expect_skipping_parity(four_unet_stages(), routes, skipping_options({}));
  expect_skipping_parity(four_unet_stages(), routes, skipping_options(routes));
}

TEST(Routes, MayLeaveOutTheStageBefore) {
  // Stage 1 has no part in the loss: its parameters get no gradients.
  const Routes routes = {{}, {{0, 0}}, {{0, 1}}, {{2, 0}, {0, 2}}};
  expect_skipping_parity(four_unet_stages(), routes, skipping_options(routes));
}

TEST(Routes, AreFollowedBySeveralStepsInARow) {
  const Schedule schedule = make_schedule({.name = "ZBVZeroBubble", .ranks = 2, .microbatches = 4});
  const Routes routes = unet_routes(schedule.stage_count());
  const auto data = unet_data(4);
  Pipeline pipeline(schedule, unet_stage, in_world(skipping_options(routes), schedule));
  const UNetResult expected = run_unsplit(routes, data);
  for (int step = 0; step < 3; ++step) {
    pipeline.step(presplit(data));
    expect_gradients(pipeline, expected.gradients);
    pipeline.zero_grad();
  }
}

TEST(Routes, AreSumsInAFixedOrder) {
  const Routes routes = unet_routes(4);
  const auto data = unet_data(3);
  std::map<std::string, at::Tensor> first;
  for (int run = 0; run < 5; ++run) {
    Pipeline pipeline(four_unet_stages(), unet_stage, in_world(skipping_options(routes), four_unet_stages()));
    pipeline.step(presplit(data));
    for (const auto& [name, parameter] : pipeline.named_parameters()) {
      if (!parameter.grad().defined()) continue;
      const auto [found, is_new] = first.emplace(name, parameter.grad());
      EXPECT_TRUE(is_new || found->second.equal(parameter.grad())) << name;
    }
  }
}

TEST(Routes, GiveOnlyMessagesToWhoTakesThem) {
  const Routes routes = {{}, {{0, 0}}, {{1, 0}}, {{2, 0}, {0, 1}}};
  const Pipeline pipeline(four_unet_stages(), unet_stage,
                          in_world(skipping_options(routes), four_unet_stages()));
  EXPECT_EQ(pipeline.plan().skips, (std::vector<Skip>{{.from = 0, .to = 3}}));
}

std::string routes_refusal(const Routes& routes) {
  try {
    const Pipeline pipeline(four_unet_stages(), unet_stage,
                            in_world(skipping_options(routes), four_unet_stages()));
  } catch (const ArgumentError& error) {
    return error.what();
  }
  return "";
}

TEST(Routes, ThatCannotBeAreRefused) {
  EXPECT_EQ(routes_refusal({{}, {}}), "the routes are for 2 stages, the schedule has 4");
  EXPECT_EQ(routes_refusal({{{0, 0}}, {}, {}, {}}),
            "the routes give inputs to stage 0, which takes the batch's");
  EXPECT_EQ(routes_refusal({{}, {{0, 0}}, {{2, 0}}, {{2, 0}}}),
            "the routes take input 0 of stage 2 from stage 2, which does not come before it");
  EXPECT_EQ(routes_refusal({{}, {{0, 0}}, {{-1, 0}}, {{2, 0}}}),
            "the routes take input 0 of stage 2 from stage -1, which does not come before it");
}

/// In this process alone: a failure ends a world.
std::string skipping_failure(const Routes& routes, const StageFactory& factory) {
  Pipeline pipeline(four_unet_stages(), factory, skipping_options(routes));
  return failure_of(pipeline, unet_data(3)).what();
}

TEST(Routes, ToAnOutputThatIsNotThereFail) {
  const Routes routes = {{}, {{0, 0}}, {{1, 0}}, {{2, 0}, {1, 9}}};
  EXPECT_NE(skipping_failure(routes, unet_stage)
                .find("stage 1, outputs: stage 3 takes slot 9, and there are 4 values"),
            std::string::npos);
}

TEST(Routes, DoNotLetAStageChangeWhatOthersTake) {
  const auto changes = [](Stage stage) -> StageModel {
    if (stage != 2) return unet_stage(stage);
    const auto inner = std::make_shared<UNetStage>(stage);
    return {[inner](const Values& inputs) {
              inputs[1].mul_(2);
              return inner->forward(inputs);
            },
            inner};
  };
  const Routes shared = {{}, {{0, 0}}, {{1, 0}, {0, 2}}, {{2, 0}, {0, 2}}};
  EXPECT_NE(skipping_failure(shared, changes)
                .find("stage 2, input slot 1: it was changed in place, but is taken again"),
            std::string::npos);
  // The last one that takes it may.
  const Routes alone = {{}, {{0, 0}, {0, 2}}, {{1, 0}, {0, 2}}, {{2, 0}}};
  Pipeline pipeline(four_unet_stages(), changes, in_world(skipping_options(alone), four_unet_stages()));
  EXPECT_NO_THROW(pipeline.step(presplit(unet_data(3))));
}

TEST(Routes, AreNamedByWhatFails) {
  const Routes routes = {{}, {{0, 0}}, {{1, 0}}, {{2, 0}, {0, 1}}};
  PipelineOptions options = skipping_options(routes);
  options.timeout = std::chrono::seconds(2);
  Pipeline pipeline(four_unet_stages(), unet_stage, options);
  pipeline.set_handler(Kind::SendF, [](const ActionContext& context) {
    if (peer_stage(context.cell[0]) != 3 || context.cell[0].stage != 0) context.run();
  });
  try {
    pipeline.eval(presplit(unet_data(3)));  // nobody else waits for anything that does not come
    ADD_FAILURE() << "a message that is not sent is not missed";
  } catch (const StepError& error) {
    EXPECT_NE(std::string(error.what())
                  .find("no activations of stage 0 (rank 0) to stage 3 (rank 3) for microbatch 0"),
              std::string::npos)
        << error.what();
  }
}

TEST(Routes, AreTracedLikeOtherMessages) {
  const Routes routes = unet_routes(4);
  Pipeline pipeline(four_unet_stages(), unet_stage, in_world(skipping_options(routes), four_unet_stages()));
  const Timeline timeline = pipeline.step(presplit(unet_data(3)), {.trace = true}).timeline;
  EXPECT_EQ(timeline.skips, pipeline.plan().skips);
  int over_skips = 0;
  for (const auto& rank : timeline.ranks) {
    for (const TimedAction& timed : rank) {
      if (timed.action.skipped() == 0) continue;
      ++over_skips;
      EXPECT_GE(timed.end, timed.start) << to_text(timed.action);
    }
  }
  EXPECT_GT(over_skips, 0);
  EXPECT_FALSE(critical_path(timeline).empty());
}

TEST(WorldOfRoutes, GivesWhatOneProcessGives) {
  const Routes routes = unet_routes(4);
  const auto data = unet_data(3);
  const UNetResult expected = run_unsplit(routes, data);
  expect_no_errors(in_worlds(2, [&](const WorldPtr& world) {
    PipelineOptions options = skipping_options(routes);
    options.world = world;
    options.processes = {0, 1, 0, 1};
    Pipeline pipeline(four_unet_stages(), unet_stage, options);
    for (int step = 0; step < 2; ++step) {
      pipeline.step(presplit(data));
      for (const auto& [name, parameter] : pipeline.named_parameters()) {
        EXPECT_TRUE(close(parameter.grad(), expected.gradients.at(name))) << name;
      }
      pipeline.zero_grad();
    }
  }));
}

TEST(WorldOfRoutes, AgreesOnThem) {
  expect_everywhere(in_worlds(2,
                              [&](const WorldPtr& world) {
                                PipelineOptions options = skipping_options(
                                    {{}, {{0, world->rank() == 0 ? 0U : 1U}}, {{1, 0}}, {{2, 0}}});
                                options.world = world;
                                const Pipeline pipeline(four_unet_stages(), unet_stage, options);
                              }),
                    "routes between stages");
}

}  // namespace
}  // namespace pipewright
