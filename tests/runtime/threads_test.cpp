// Threads, channels and aborts alone: no autograd and hardly an operator runs, so that a
// thread sanitizer sees this library and not the uninstrumented one below it.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "pipewright/runtime/pipeline.h"
#include "pipewright/schedule/csv.h"
#include "runtime/training_schedules.h"

namespace pipewright {
namespace {

Batch batch_of(Microbatch microbatches) {
  Batch batch;
  for (Microbatch k = 0; k < microbatches; ++k) {
    batch.microbatches.push_back({{torch::full({2}, static_cast<double>(k))}, {torch::zeros({1})}, {}});
  }
  return batch;
}

at::Tensor first_element(const Values& outputs, const Values&) { return outputs.at(0).select(0, 0); }

const PipelineOptions kOptions{.loss = first_element, .timeout = std::chrono::seconds(60)};

/// Every stage adds one.
StageModel add_one(Stage) {
  return StageModel([](const at::Tensor& x) { return x + 1; });
}

void expect_counted(const StepResult& result, Stage stages, Microbatch microbatches) {
  ASSERT_EQ(result.losses.size(), static_cast<std::size_t>(microbatches));
  for (Microbatch k = 0; k < microbatches; ++k) {
    EXPECT_EQ(result.losses[static_cast<std::size_t>(k)].item<float>(), static_cast<float>(stages + k));
  }
}

class Threads : public testing::TestWithParam<ScheduleInfo> {};
INSTANTIATE_TEST_SUITE_P(Every, Threads, testing::ValuesIn(training_schedules()), schedule_test_name);

TEST_P(Threads, CarryEveryMicrobatchThroughEveryStage) {
  const Schedule schedule = make_schedule(GetParam(), 4, 8);
  Pipeline pipeline(schedule, add_one, kOptions);
  for (int step = 0; step < 5; ++step) {
    expect_counted(pipeline.step(batch_of(8)), schedule.stage_count(), 8);
    expect_counted(pipeline.eval(batch_of(3), {.microbatches = 3}), schedule.stage_count(), 3);
  }
}

TEST_P(Threads, RunHandlersInPlaceOfBackwards) {
  const Schedule schedule = make_schedule(GetParam(), 3, 5);
  Pipeline pipeline(schedule, add_one, kOptions);
  std::atomic<int> calls = 0;
  for (const Kind kind : {Kind::B, Kind::I, Kind::W}) {
    pipeline.set_handler(kind, [&](const ActionContext&) { ++calls; });
  }
  int planned = 0;
  for (const auto& actions : schedule.ranks) {
    for (const Action action : actions) planned += is_compute(action.kind) && action.kind != Kind::F;
  }
  for (int step = 1; step <= 4; ++step) {
    expect_counted(pipeline.step(batch_of(5)), schedule.stage_count(), 5);
    EXPECT_EQ(calls, step * planned);
  }
}

TEST_P(Threads, SurviveRepeatedFailures) {
  const Schedule schedule = make_schedule(GetParam(), 3, 5);
  std::atomic<int> countdown = -1;
  Pipeline pipeline(
      schedule,
      [&](Stage) {
        return StageModel([&](const at::Tensor& x) {
          if (countdown.fetch_sub(1) == 0) throw std::runtime_error("enough");
          return x + 1;
        });
      },
      kOptions);
  const int forwards = schedule.stage_count() * 5;
  for (int at = 0; at < forwards; ++at) {
    countdown = at;
    EXPECT_THROW(pipeline.step(batch_of(5)), StepError) << at;
    countdown = -1;
    expect_counted(pipeline.step(batch_of(5)), schedule.stage_count(), 5);
  }
}

TEST_P(Threads, SurviveFailuresOfSeveralRanksAtOnce) {
  const Schedule schedule = make_schedule(GetParam(), 4, 6);
  std::atomic<bool> failing = false;
  Pipeline pipeline(
      schedule,
      [&](Stage stage) {
        return StageModel([&, stage](const at::Tensor& x) {
          if (failing && stage % 2 == 1) throw std::runtime_error("enough");
          return x + 1;
        });
      },
      kOptions);
  for (int round = 0; round < 10; ++round) {
    failing = true;
    try {
      pipeline.step(batch_of(6));
      ADD_FAILURE() << "the step succeeded";
    } catch (const StepError& error) {
      EXPECT_EQ(error.action.stage % 2, 1);
      EXPECT_EQ(error.action.kind, Kind::F);
    }
    failing = false;
    expect_counted(pipeline.step(batch_of(6)), schedule.stage_count(), 6);
  }
}

TEST(ThreadsOfOverlaps, RunSideBySideStepAfterStep) {
  const Schedule schedule = make_schedule({.name = "DualPipeV", .ranks = 2, .microbatches = 8});
  std::atomic<int> forwards = 0;
  Pipeline pipeline(
      schedule,
      [&](Stage) {
        return StageModel([&](const at::Tensor& x) {
          ++forwards;
          return x + 1;
        });
      },
      kOptions);
  for (int step = 1; step <= 20; ++step) {
    expect_counted(pipeline.step(batch_of(8), {.trace = true}), schedule.stage_count(), 8);
    EXPECT_EQ(forwards, step * 4 * 8);
  }
}

TEST(ThreadsOfOverlaps, EndWithAFailureOfEitherPart) {
  Pipeline pipeline(parse_csv("0F0,1F0,(0F1;1B0)OVERLAP_F_B,0B0,1F1,1B1,0B1\n"), add_one, kOptions);
  for (int round = 0; round < 10; ++round) {
    const Kind failing = round % 2 ? Kind::F : Kind::B;
    pipeline.set_handler(failing, [](const ActionContext& context) {
      if (to_text(context.cell[0]) == "0F1" || to_text(context.cell[0]) == "1B0") {
        throw std::runtime_error("enough");
      }
      context.run();
    });
    EXPECT_THROW(pipeline.step(batch_of(2)), StepError);
    pipeline.set_handler(failing, {});
    expect_counted(pipeline.step(batch_of(2)), 2, 2);
  }
}

TEST(ThreadsThatWait, AreFreedByATimeout) {
  std::atomic<int> delay = 0;
  PipelineOptions options = kOptions;
  options.timeout = std::chrono::milliseconds(200);
  Pipeline pipeline(
      make_schedule({.name = "1F1B", .ranks = 4, .microbatches = 4}),
      [&](Stage stage) {
        return StageModel([&, stage](const at::Tensor& x) {
          if (stage == 1) std::this_thread::sleep_for(std::chrono::milliseconds(delay));
          return x + 1;
        });
      },
      options);
  for (int round = 0; round < 2; ++round) {
    delay = 800;
    EXPECT_THROW(pipeline.step(batch_of(4)), StepError);
    delay = 0;
    expect_counted(pipeline.step(batch_of(4)), 4, 4);
  }
}

TEST(ThreadsOfPipelines, StartAndEndWithoutAStep) {
  const Schedule schedule = make_schedule({.name = "DualPipeV", .ranks = 3, .microbatches = 4});
  for (int round = 0; round < 20; ++round) {
    Pipeline pipeline(schedule, add_one, kOptions);
    Pipeline moved = std::move(pipeline);
    if (round % 2) expect_counted(moved.step(batch_of(4)), 6, 4);
  }
}

TEST(ThreadsOfPipelines, DoNotDisturbAnotherPipelines) {
  const auto train = [](const char* name) {
    const Schedule schedule = make_schedule({.name = name, .ranks = 2, .microbatches = 4});
    Pipeline pipeline(schedule, add_one, kOptions);
    for (int step = 0; step < 10; ++step) {
      expect_counted(pipeline.step(batch_of(4)), schedule.stage_count(), 4);
    }
  };
  std::thread first([&] { train("DualPipeV"); });
  std::thread second([&] { train("ZBVZeroBubble"); });
  first.join();
  second.join();
}

TEST(ThreadsOfPipelines, ServeOneCallerAfterAnother) {
  Pipeline pipeline(make_schedule({.name = "1F1B", .ranks = 2, .microbatches = 4}), add_one, kOptions);
  for (int round = 0; round < 5; ++round) {
    std::thread([&] { expect_counted(pipeline.step(batch_of(4)), 2, 4); }).join();
  }
}

TEST(ThreadsOfInference, HandOverOutputsFromTheLastStage) {
  Pipeline pipeline(make_schedule({.name = "Interleaved1F1B", .ranks = 4, .microbatches = 4}), add_one,
                    kOptions);
  for (int round = 0; round < 5; ++round) {
    int seen = 0;
    pipeline.infer(batch_of(9),
                   [&](Microbatch microbatch, const Values& outputs) {
                     ++seen;
                     EXPECT_EQ(outputs.at(0).select(0, 0).item<float>(), static_cast<float>(8 + microbatch));
                   },
                   {.microbatches = 9});
    EXPECT_EQ(seen, 9);
  }
}

}  // namespace
}  // namespace pipewright
