// Updates as a part of steps; those in CUDA graphs are in capture_test.cpp.

#include <gtest/gtest.h>

#include <limits>

#include "runtime/compare.h"
#include "runtime/models.h"
#include "runtime/training_schedules.h"
#include "runtime/updates.h"

namespace pipewright {
namespace {

using Calls = std::vector<std::string>;

Schedule one_f_one_b() { return make_schedule({.name = "1F1B", .ranks = 2, .microbatches = 4}); }

class UpdateInStep : public testing::TestWithParam<ScheduleInfo> {};
INSTANTIATE_TEST_SUITE_P(Every, UpdateInStep, testing::ValuesIn(training_schedules()), schedule_test_name);

TEST_P(UpdateInStep, IsTheSameAsAfterIt) {
  for (const Model& model : {mlp(), gpt()}) {
    SCOPED_TRACE(model.name);
    const Schedule schedule = make_schedule(GetParam(), 2, 4);
    Pipeline with = make_pipeline(model, schedule);
    Pipeline without = make_pipeline(model, schedule);
    const auto inside = fused_adamw(with);
    const auto after = fused_adamw(without);
    for (int step = 0; step < 4; ++step) {
      with.step(presplit(model.data(4)), {.update = inside.get()});
      with.zero_grad();
      without.step(presplit(model.data(4)));
      after->step();
      without.zero_grad();
    }
    const std::vector<at::Tensor> expected = copies_of(without);
    const std::vector<at::Tensor> actual = copies_of(with);
    for (std::size_t at = 0; at < actual.size(); ++at) EXPECT_TRUE(close(actual[at], expected[at])) << at;
  }
}

TEST(UpdateOfAStep, ComesOnceAndWhenTiedGradientsAreSummed) {
  const Model model = gpt();
  Pipeline pipeline = make_pipeline(model, one_f_one_b());
  const auto optimizer = fused_sgd(pipeline);
  Unsplit unsplit(model);
  unsplit.run(model.data(4));
  int looked = 0;
  Noted update(*optimizer, [&] {
    expect_gradients(pipeline, unsplit.gradients());
    ++looked;
  });
  pipeline.step(presplit(model.data(4)), {.update = &update});
  EXPECT_EQ(looked, 1);
  EXPECT_EQ(update.calls, (Calls{"prepare", "apply"}));
}

TEST(UpdateOfAStep, HasTheGradientsOfEarlierStepsToo) {
  const Model model = mlp();
  Pipeline pipeline = make_pipeline(model, one_f_one_b());
  const auto optimizer = fused_sgd(pipeline);
  Unsplit unsplit(model);
  for (int step = 0; step < 2; ++step) unsplit.run(model.data(4), {}, 2);
  Noted update(*optimizer, [&] { expect_gradients(pipeline, unsplit.gradients()); });
  for (const NonFinite non_finite : {NonFinite::GoOn, NonFinite::Skip}) {
    const Pipeline::StateDict before = [&] {
      Pipeline::StateDict copies;
      for (const auto& [name, value] : pipeline.state_dict()) copies[name] = value.clone();
      return copies;
    }();
    pipeline.step(presplit(model.data(4)), {.accumulation = 2, .non_finite = non_finite});
    pipeline.step(presplit(model.data(4)), {.accumulation = 2, .non_finite = non_finite, .update = &update});
    pipeline.zero_grad();
    const torch::NoGradGuard no_grad;
    for (const auto& [name, value] : pipeline.state_dict()) at::Tensor(value).copy_(before.at(name));
  }
  EXPECT_EQ(update.calls, (Calls{"prepare", "apply", "prepare", "apply"}));
}

TEST(UpdateOfAStep, IsLeftOutWhereNumbersAreNotFinite) {
  const Model model = mlp();
  Pipeline pipeline = make_pipeline(model, one_f_one_b());
  const auto optimizer = fused_adamw(pipeline);
  Noted update(*optimizer);
  pipeline.step(presplit(model.data(4)), {.non_finite = NonFinite::Skip, .update = &update});
  pipeline.zero_grad();
  EXPECT_EQ(update.calls, (Calls{"prepare", "apply"}));

  const std::vector<at::Tensor> before = copies_of(pipeline);
  const std::int64_t steps = steps_of(*optimizer);
  auto data = model.data(4);
  for (at::Tensor& input : data[2].inputs) input.fill_(std::numeric_limits<double>::quiet_NaN());
  const StepResult skipped =
      pipeline.step(presplit(data), {.non_finite = NonFinite::Skip, .update = &update});
  EXPECT_NE(skipped.skipped_for, "");
  EXPECT_THROW(pipeline.step(presplit(data), {.non_finite = NonFinite::Stop, .update = &update}),
               NonFiniteError);
  EXPECT_EQ(update.calls, (Calls{"prepare", "apply"}));
  EXPECT_EQ(steps_of(*optimizer), steps);
  const std::vector<at::Tensor> after = copies_of(pipeline);
  for (std::size_t at = 0; at < after.size(); ++at) EXPECT_TRUE(torch::equal(after[at], before[at])) << at;
}

TEST(UpdateOfAStep, IsMadeWhereAGraphIsRefused) {
  if (test_world()) GTEST_SKIP() << "it is for one process";
  const OnDevice cpu(at::kCPU);
  const Model model = mlp();
  PipelineOptions options = options_for(model);
  options.cuda_graph = true;
  Pipeline pipeline(one_f_one_b(), cut(model, 2), options);
  const auto optimizer = fused_adamw(pipeline);
  Noted update(*optimizer);
  for (int step = 0; step < 4; ++step) {
    pipeline.step(presplit(model.data(4)), {.update = &update});
    pipeline.zero_grad();
  }
  EXPECT_EQ(update.calls.size(), 8U);
  EXPECT_EQ(steps_of(*optimizer), 4 * static_cast<std::int64_t>(pipeline.parameters().size()));
}

TEST(UpdateOfAStep, DoesNotFollowAStepThatFails) {
  Model model = mlp();
  model.layers.push_back(function([](const Values&) -> Values { throw std::runtime_error("no"); }));
  Pipeline pipeline = make_local_pipeline(model, one_f_one_b());
  const auto optimizer = fused_sgd(pipeline);
  Noted update(*optimizer);
  EXPECT_THROW(pipeline.step(presplit(model.data(4)), {.update = &update}), StepError);
  EXPECT_TRUE(update.calls.empty());
}

}  // namespace
}  // namespace pipewright
