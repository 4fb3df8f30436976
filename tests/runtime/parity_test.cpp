#include <gtest/gtest.h>

#include "pipewright/schedule/csv.h"
#include "pipewright/schedule/lower.h"
#include "runtime/compare.h"
#include "runtime/models.h"
#include "runtime/training_schedules.h"

namespace pipewright {
namespace {

std::string sizes_text(Rank ranks, Microbatch microbatches) {
  return std::to_string(ranks) + " ranks, " + std::to_string(microbatches) + " microbatches";
}

class Parity : public testing::TestWithParam<ScheduleInfo> {};
INSTANTIATE_TEST_SUITE_P(Every, Parity, testing::ValuesIn(training_schedules()), schedule_test_name);

TEST_P(Parity, OfLossAndGradientsHoldsForAnyNumberOfRanksAndMicrobatches) {
  const Model model = mlp();
  for (const Rank ranks : {1, 2, 3, 4}) {
    for (const Microbatch microbatches : {1, 2, 3, 5, 8}) {
      SCOPED_TRACE(sizes_text(ranks, microbatches));
      expect_parity(model, make_schedule(GetParam(), ranks, microbatches));
    }
  }
}

TEST_P(Parity, HoldsForSchedulesReadFromText) {
  for (const Rank ranks : {2, 4}) {
    SCOPED_TRACE(sizes_text(ranks, 5));
    const Schedule schedule = make_schedule(GetParam(), ranks, 5);
    expect_parity(mlp(), parse_csv(to_csv(schedule)));
    expect_parity(mlp(), parse_csv(to_csv(lower(schedule))));
  }
}

TEST_P(Parity, HoldsForEveryWayToLower) {
  for (const Rank ranks : {1, 2, 3, 4}) {
    SCOPED_TRACE(sizes_text(ranks, 4));
    const Schedule schedule = make_schedule(GetParam(), ranks, 4);
    for (const LowerOptions lowering :
         {LowerOptions{.max_active_stages = 1}, LowerOptions{.defer_receives = true},
          LowerOptions{.merge_backward = true},
          LowerOptions{.merge_backward = true, .defer_receives = true}}) {
      SCOPED_TRACE(std::string(lowering.merge_backward ? "merged " : "") +
                   (lowering.defer_receives ? "deferred" : ""));
      expect_parity(mlp(), lower(schedule, lowering));
      PipelineOptions options = options_for(mlp());
      options.lower = lowering;
      expect_parity(mlp(), schedule, options);
    }
  }
}

TEST_P(Parity, HoldsForStagesOfAnyNumber) {
  for (const int stages_per_rank : {1, 3, 4}) {
    if (stages_per_rank < GetParam().min_stages_per_rank ||
        stages_per_rank > GetParam().max_stages_per_rank) {
      continue;
    }
    SCOPED_TRACE(std::to_string(stages_per_rank) + " stages a rank");
    expect_parity(mlp(), make_schedule({.name = std::string(GetParam().name),
                                        .ranks = 2,
                                        .microbatches = 5,
                                        .stages_per_rank = stages_per_rank}));
  }
}

class ModelParity : public testing::TestWithParam<std::tuple<ScheduleInfo, Model>> {};

INSTANTIATE_TEST_SUITE_P(Every, ModelParity,
                         testing::Combine(testing::ValuesIn(training_schedules()),
                                          testing::ValuesIn(every_model())),
                         [](const auto& parameter) {
                           std::string name(std::get<0>(parameter.param).name);
                           std::erase(name, '-');
                           return name + "_" + std::get<1>(parameter.param).name;
                         });

TEST_P(ModelParity, OfLossAndGradientsHoldsOnAnyNumberOfRanks) {
  const auto& [info, model] = GetParam();
  for (const Rank ranks : {1, 2, 3, 4}) {
    for (const Microbatch microbatches : {1, ranks + 1}) {
      SCOPED_TRACE(sizes_text(ranks, microbatches));
      expect_parity(model, make_schedule(info, ranks, microbatches));
    }
  }
}

TEST(Training, FollowsTheUnsplitModelOverSeveralSteps) {
  const Model model = gpt();
  const auto data = model.data(4);
  Unsplit unsplit(model);
  Pipeline pipeline =
      make_pipeline(model, make_schedule({.name = "ZBVZeroBubble", .ranks = 2, .microbatches = 4}));
  std::vector<double> losses;
  for (int step = 0; step < 5; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    const auto expected = unsplit.run(data);
    const StepResult result = pipeline.step(presplit(data));
    losses.push_back(result.loss.item<double>());
    expect_losses(result, expected);
    expect_gradients(pipeline, unsplit.gradients());

    const torch::NoGradGuard no_grad;
    const Gradients gradients = unsplit.gradients();
    for (const auto& item : unsplit.module().named_parameters()) {
      at::Tensor parameter = item.value();
      parameter.sub_(gradients.at(item.key()), 0.2);
    }
    unsplit.module().zero_grad();
    for (at::Tensor& parameter : pipeline.parameters()) parameter.sub_(parameter.grad(), 0.2);
    pipeline.zero_grad();
  }
  EXPECT_LT(losses.back(), losses.front());
}

}  // namespace
}  // namespace pipewright
