#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>

#include "pipewright/schedule/csv.h"
#include "pipewright/schedule/simulate.h"
#include "runtime/compare.h"
#include "runtime/faults.h"
#include "runtime/training_schedules.h"

namespace pipewright {
namespace {

/// Tensors that are watched without being kept, by what they are and whose.
class Watch {
 public:
  void see(const std::string& what, const at::Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    seen_[what].push_back(tensor.storage().getWeakStorageImpl());
  }
  /// How many of those that have a name starting like this are still there.
  std::size_t alive(const std::string& start) const {
    const std::lock_guard lock(mutex_);
    std::size_t count = 0;
    for (const auto& [what, storages] : seen_) {
      if (!what.starts_with(start)) continue;
      count += static_cast<std::size_t>(
          std::count_if(storages.begin(), storages.end(), [](const auto& each) { return !each.expired(); }));
    }
    return count;
  }
  /// The same, after the other ranks had time to get there.
  std::size_t alive_after_a_while(const std::string& start) const {
    for (int wait = 0; wait < 2000 && alive(start) > 0; ++wait) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return alive(start);
  }
  std::size_t count() const {
    const std::lock_guard lock(mutex_);
    return seen_.size();
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>>> seen_;
};

std::string name_of(const char* what, Stage stage, Microbatch microbatch) {
  return std::string(what) + " " + std::to_string(stage) + " " + std::to_string(microbatch) + ".";
}

/// A stage that shows what it takes, makes inside and gives.
class Watched : public torch::nn::Module {
 public:
  Watched(std::shared_ptr<Watch> watch, Stage stage, std::function<void(Stage, Microbatch)> before)
      : watch_(std::move(watch)), stage_(stage), before_(std::move(before)) {
    first_ = register_parameter("first", torch::eye(4, test_device()));
    second_ = register_parameter("second", torch::eye(4, test_device()));
  }
  at::Tensor forward(const at::Tensor& x) {
    const Microbatch microbatch = microbatch_now();
    if (before_) before_(stage_, microbatch);
    // Kept by tanh for the input gradient and by the product for the weight gradient.
    const at::Tensor inside = torch::tanh(x.mm(first_));
    const at::Tensor out = inside.mm(second_);
    if (stage_ > 0) watch_->see(name_of("input", stage_, microbatch), x);
    watch_->see(name_of("inside", stage_, microbatch), inside);
    watch_->see(name_of("output", stage_, microbatch), out);
    return out;
  }

 private:
  std::shared_ptr<Watch> watch_;
  Stage stage_;
  std::function<void(Stage, Microbatch)> before_;
  at::Tensor first_;
  at::Tensor second_;
};

Pipeline watched_pipeline(const Schedule& schedule, const std::shared_ptr<Watch>& watch,
                          const std::function<void(Stage, Microbatch)>& before = {}) {
  return Pipeline(
      schedule, [=](Stage stage) { return StageModel(std::make_shared<Watched>(watch, stage, before)); },
      options_for(dropout()));
}

/// The microbatches of a stage whose last backward comes before this forward.
std::vector<Microbatch> ended_before(const Schedule& schedule, Stage stage, Microbatch microbatch) {
  std::vector<Microbatch> ended;
  const auto rank = static_cast<std::size_t>(schedule.placement[static_cast<std::size_t>(stage)]);
  for (const Action action : schedule.ranks[rank]) {
    if (action.stage != stage) continue;
    const auto of = static_cast<Microbatch>(action.microbatch);
    if (action.kind == Kind::F && of == microbatch) break;
    if (gives_weight_grad(action.kind)) ended.push_back(of);
  }
  return ended;
}

class Lifetime : public testing::TestWithParam<ScheduleInfo> {};
INSTANTIATE_TEST_SUITE_P(Every, Lifetime, testing::ValuesIn(training_schedules()), schedule_test_name);

bool overlaps(const Schedule& schedule) {
  return std::ranges::any_of(schedule.ranks, [](const std::vector<Action>& actions) {
    return std::ranges::any_of(actions, [](Action action) { return action.fused_with_next(); });
  });
}

TEST_P(Lifetime, PeakIsTheSimulators) {
  for (const Rank ranks : {1, 2, 4}) {
    for (const Microbatch microbatches : {1, 3, 8}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(microbatches) + " microbatches");
      const Schedule schedule = make_schedule(GetParam(), ranks, microbatches);
      Pipeline pipeline = make_local_pipeline(dropout(), schedule);
      Costs costs = uniform_costs(schedule.placement);
      for (StageCosts& stage : costs.stages) stage.activation = 1;
      const Metrics expected = measure(simulate(pipeline.plan(), costs), costs);
      // Counted anew in every step.
      for (int step = 0; step < 2; ++step) {
        const StepResult result = pipeline.step(presplit(dropout().data(microbatches)));
        ASSERT_EQ(result.peak_live.size(), expected.ranks.size());
        for (std::size_t rank = 0; rank < expected.ranks.size(); ++rank) {
          const double predicted = expected.ranks[rank].peak_activation;
          EXPECT_LE(result.peak_live[rank], predicted) << "rank " << rank;
          // Of parts that run at the same time, the backward may end before the forward begins.
          EXPECT_GE(result.peak_live[rank], overlaps(schedule) ? predicted - 1 : predicted)
              << "rank " << rank;
        }
      }
    }
  }
}

TEST_P(Lifetime, OfActivationsEndsWithTheirLastBackward) {
  const Schedule schedule = make_schedule(GetParam(), 3, 6);
  const auto watch = std::make_shared<Watch>();
  std::atomic<std::size_t> checked = 0;
  Pipeline pipeline = watched_pipeline(schedule, watch, [&](Stage stage, Microbatch microbatch) {
    for (const Microbatch ended : ended_before(schedule, stage, microbatch)) {
      EXPECT_EQ(watch->alive(name_of("inside", stage, ended)), 0U)
          << "of " << ended << " in the forward of " << microbatch << " on stage " << stage;
      ++checked;
    }
  });
  pipeline.step(presplit(dropout().data(6)));
  std::size_t expected = 0;
  for (Stage stage = 0; stage < schedule.stage_count(); ++stage) {
    for (Microbatch k = 0; k < 6; ++k) expected += ended_before(schedule, stage, k).size();
  }
  EXPECT_EQ(checked, expected);
}

TEST_P(Lifetime, OfEverythingEndsWithTheStep) {
  const Schedule schedule = make_schedule(GetParam(), 2, 5);
  const auto watch = std::make_shared<Watch>();
  Pipeline pipeline = watched_pipeline(schedule, watch);
  for (int step = 0; step < 2; ++step) {
    const StepResult result = pipeline.step(presplit(dropout().data(5)));
    EXPECT_EQ(watch->alive("input"), 0U);
    EXPECT_EQ(watch->alive("inside"), 0U);
    EXPECT_EQ(watch->alive("output"), 0U);
  }
  EXPECT_EQ(watch->count(), static_cast<std::size_t>(schedule.stage_count() * 15 - 5));
}

TEST_P(Lifetime, OfEverythingEndsWithAFailedStep) {
  const Schedule schedule = make_schedule(GetParam(), 2, 5);
  for (Stage failing = 0; failing < schedule.stage_count(); ++failing) {
    const auto watch = std::make_shared<Watch>();
    Pipeline pipeline = watched_pipeline(schedule, watch, [failing](Stage stage, Microbatch microbatch) {
      if (stage == failing && microbatch == 3) throw Thrown("thrown in a forward");
    });
    EXPECT_THROW(pipeline.step(presplit(dropout().data(5))), StepError);
    EXPECT_GT(watch->count(), 0U);
    EXPECT_EQ(watch->alive("input"), 0U);
    EXPECT_EQ(watch->alive("inside"), 0U);
    EXPECT_EQ(watch->alive("output"), 0U);
  }
}

TEST(LifetimeOfReceivedTensors, EndsWithTheirBackward) {
  const Schedule schedule = make_schedule({.name = "1F1B", .ranks = 3, .microbatches = 6});
  const auto watch = std::make_shared<Watch>();
  std::atomic<int> checked = 0;
  Pipeline pipeline = watched_pipeline(schedule, watch, [&](Stage stage, Microbatch microbatch) {
    // What a stage has sent is held by itself until its backward, and until then by its receiver.
    for (const Microbatch ended : ended_before(schedule, stage, microbatch)) {
      EXPECT_EQ(watch->alive_after_a_while(name_of("output", stage, ended)), 0U);
      EXPECT_EQ(watch->alive_after_a_while(name_of("input", stage + 1, ended)), 0U);
      ++checked;
    }
  });
  pipeline.step(presplit(dropout().data(6)));
  EXPECT_GT(checked, 0);
}

TEST(LifetimeOfOutputs, IsThatOfTheForwardUnlessTheyAreAskedFor) {
  const auto watch = std::make_shared<Watch>();
  const auto last_outputs = [&](Stage stage, Microbatch microbatch) {
    std::size_t count = 0;
    for (Microbatch k = 0; k < microbatch && stage == 1; ++k) count += watch->alive(name_of("output", 1, k));
    return count;
  };
  bool kept = false;
  Pipeline pipeline = watched_pipeline(parse_csv("0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n"), watch,
                                       [&](Stage stage, Microbatch microbatch) {
                                         const std::size_t count = last_outputs(stage, microbatch);
                                         EXPECT_TRUE(kept || count == 0) << microbatch;
                                       });
  const auto data = dropout().data(3);
  pipeline.step(presplit(data));
  kept = true;
  {
    const StepResult result = pipeline.step(presplit(data), {.outputs = true});
    EXPECT_EQ(result.outputs.size(), 1U);
  }
  EXPECT_EQ(watch->alive("output"), 0U);
}

TEST(LifetimeInEval, EndsWhenTheNextStageHasRun) {
  const auto watch = std::make_shared<Watch>();
  std::atomic<int> checked = 0;
  Pipeline pipeline =
      watched_pipeline(make_schedule({.name = "GPipe", .ranks = 3, .microbatches = 6}), watch,
                       [&](Stage stage, Microbatch microbatch) {
                         EXPECT_EQ(watch->alive(name_of("inside", stage, microbatch - 1)), 0U);
                         EXPECT_EQ(watch->alive_after_a_while(name_of("input", stage, microbatch - 1)), 0U);
                         ++checked;
                       });
  pipeline.eval(presplit(dropout().data(6)), {.outputs = false});
  EXPECT_EQ(checked, 18);
  EXPECT_EQ(watch->alive("output"), 0U);
  pipeline.infer(presplit(dropout().data(6)), [](Microbatch, const Values&) {});
  EXPECT_EQ(watch->alive("output"), 0U);
}

TEST(LifetimeOfBatches, IsTheCallers) {
  Pipeline pipeline = make_local_pipeline(dropout(), parse_csv("0F0,0B0\n1F0,1B0\n"));
  auto data = dropout().data(1);
  const auto inputs = data[0].inputs[0].storage().getWeakStorageImpl();
  const auto targets = data[0].targets[0].storage().getWeakStorageImpl();
  const StepResult result = pipeline.step(presplit(std::move(data)));
  EXPECT_TRUE(inputs.expired());
  EXPECT_TRUE(targets.expired());
}

}  // namespace
}  // namespace pipewright
