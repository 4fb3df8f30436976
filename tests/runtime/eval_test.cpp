#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "pipewright/schedule/csv.h"
#include "runtime/compare.h"
#include "runtime/models.h"
#include "runtime/training_schedules.h"

namespace pipewright {
namespace {

at::Tensor joined_output(const std::vector<Values>& outputs) {
  std::vector<at::Tensor> parts;
  for (const Values& each : outputs) parts.push_back(each.at(0));
  return torch::cat(parts);
}

class Eval : public testing::TestWithParam<ScheduleInfo> {};
INSTANTIATE_TEST_SUITE_P(Every, Eval, every_schedule(), schedule_test_name);

TEST_P(Eval, GivesLossesAndOutputsForItsOwnNumberOfMicrobatches) {
  for (const Model& model : every_model()) {
    if (model.name == "ManyValues") continue;  // its outputs are not all there to be joined
    for (const Rank ranks : {1, 2, 4}) {
      Pipeline pipeline = make_pipeline(model, make_schedule(GetParam(), ranks, 3));
      for (const Microbatch microbatches : {3, 1, 5}) {
        SCOPED_TRACE(model.name + " on " + std::to_string(ranks) + " ranks, " + std::to_string(microbatches) +
                     " microbatches");
        const auto data = model.data(microbatches);
        Unsplit unsplit(model);
        const auto expected = unsplit.run(data);
        const StepResult result = pipeline.eval(presplit(data), {.microbatches = microbatches});
        expect_losses(result, expected);
        EXPECT_TRUE(close(result.outputs.at(0), joined_output(expected.outputs)));
        EXPECT_FALSE(result.outputs.at(0).requires_grad());
        for (const auto& [name, parameter] : pipeline.named_parameters()) {
          EXPECT_FALSE(parameter.grad().defined()) << name;
        }
      }
    }
  }
}

TEST_P(Eval, SplitsABatchIntoItsOwnNumberOfMicrobatches) {
  Pipeline pipeline = make_pipeline(mlp(), make_schedule(GetParam(), 2, 3));
  const Batch batch = joined(mlp().data(4));
  Unsplit unsplit(mlp());
  const auto expected = unsplit.run({{batch.inputs, batch.targets, {}}});
  for (const Microbatch microbatches : {1, 2, 7}) {
    const StepResult result = pipeline.eval(batch, {.microbatches = microbatches});
    EXPECT_EQ(result.losses.size(), static_cast<std::size_t>(microbatches));
    EXPECT_TRUE(close(result.outputs.at(0), joined_output(expected.outputs)));
  }
  EXPECT_EQ(pipeline.eval(batch).losses.size(), 3U);
}

TEST_P(Eval, BetweenStepsLeavesGradientsAlone) {
  const Schedule schedule = make_schedule(GetParam(), 2, 3);
  if (!trains(schedule)) return;
  const auto data = mlp().data(3);
  Unsplit unsplit(mlp());
  Pipeline pipeline = make_pipeline(mlp(), schedule);
  for (int step = 0; step < 3; ++step) {
    expect_losses(pipeline.step(presplit(data)), unsplit.run(data));
    pipeline.eval(presplit(mlp().data(2)), {.microbatches = 2});
    expect_gradients(pipeline, unsplit.gradients());
  }
}

TEST_P(Eval, RunsStagesWithoutGradients) {
  const Schedule schedule = make_schedule(GetParam(), 2, 2);
  Pipeline pipeline(schedule, [](Stage) {
    return StageModel([](const at::Tensor& x) {
      EXPECT_FALSE(at::GradMode::is_enabled());
      EXPECT_FALSE(x.requires_grad());
      return x;
    });
  });
  const StepResult result = pipeline.eval(presplit(mlp().data(2)));
  EXPECT_EQ(result.outputs.size(), 1U);
}

Schedule two_ranks() { return parse_csv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"); }
Pipeline two_stages() { return make_pipeline(mlp(), two_ranks()); }

TEST(EvalLoss, IsAbsentWithoutTargets) {
  Pipeline pipeline = two_stages();
  Batch batch = joined(mlp().data(2));
  batch.targets.clear();
  const StepResult result = pipeline.eval(batch);
  EXPECT_FALSE(result.loss.defined());
  EXPECT_EQ(result.outputs.size(), 1U);
}

TEST(EvalLoss, IsDividedByTheDenominator) {
  Pipeline pipeline = two_stages();
  const auto data = mlp().data(2);
  Unsplit unsplit(mlp());
  expect_losses(pipeline.eval(presplit(data), {.denominator = 5}), unsplit.run(data, 5));
}

TEST(EvalLoss, ComesWithoutOutputsIfTheyAreNotAskedFor) {
  Pipeline pipeline = two_stages();
  const StepResult result = pipeline.eval(presplit(mlp().data(2)), {.outputs = false});
  EXPECT_TRUE(result.loss.defined());
  EXPECT_TRUE(result.outputs.empty());
}

TEST(Infer, HandsOverEveryMicrobatchOnce) {
  Pipeline pipeline =
      make_local_pipeline(mlp(), make_schedule({.name = "DualPipeV", .ranks = 2, .microbatches = 4}));
  const auto data = mlp().data(7);
  Unsplit unsplit(mlp());
  const auto expected = unsplit.run(data);
  std::map<Microbatch, Values> seen;
  std::set<std::thread::id> threads;
  pipeline.infer(presplit(data),
                 [&](Microbatch microbatch, Values outputs) {
                   EXPECT_TRUE(seen.emplace(microbatch, std::move(outputs)).second);
                   threads.insert(std::this_thread::get_id());
                 },
                 {.microbatches = 7});
  ASSERT_EQ(seen.size(), 7U);
  for (const auto& [microbatch, outputs] : seen) {
    EXPECT_TRUE(close(outputs.at(0), expected.outputs[static_cast<std::size_t>(microbatch)][0]));
  }
  EXPECT_EQ(threads.size(), 1U);
  EXPECT_FALSE(threads.contains(std::this_thread::get_id()));
}

TEST(Infer, HandsOverOutputsAsTheyCome) {
  // The first stage does not start the last microbatch before the first output is out.
  std::mutex mutex;
  std::condition_variable out;
  int outputs_seen = 0;
  bool in_time = true;
  int calls = 0;
  const StageFactory build = [&](Stage stage) {
    if (stage == 1) return StageModel();
    return StageModel([&](const at::Tensor& x) {
      std::unique_lock lock(mutex);
      if (++calls == 4) {
        in_time = out.wait_for(lock, std::chrono::seconds(10), [&] { return outputs_seen > 0; });
      }
      return x;
    });
  };
  Pipeline pipeline(parse_csv("0F0,0F1,0F2,0F3\n1F0,1F1,1F2,1F3\n"), build);
  pipeline.infer(presplit(mlp().data(4)), [&](Microbatch, const Values&) {
    {
      const std::lock_guard lock(mutex);
      ++outputs_seen;
    }
    out.notify_all();
  });
  EXPECT_TRUE(in_time);
  EXPECT_EQ(outputs_seen, 4);
}

TEST(Infer, NamesTheActionWhoseOutputWasRefused) {
  Pipeline pipeline = make_local_pipeline(mlp(), two_ranks());
  const auto data = mlp().data(2);
  try {
    pipeline.infer(presplit(data), [](Microbatch microbatch, const Values&) {
      if (microbatch == 1) throw std::runtime_error("refused");
    });
    FAIL() << "no error";
  } catch (const StepError& error) {
    EXPECT_EQ(to_text(error.action), "1F1");
    EXPECT_NE(std::string(error.what()).find("refused"), std::string::npos);
  }
  Unsplit unsplit(mlp());
  expect_losses(pipeline.eval(presplit(data)), unsplit.run(data));
}

}  // namespace
}  // namespace pipewright
