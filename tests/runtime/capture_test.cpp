// Steps as CUDA graphs, and ranks on a CUDA device with streams of their own. All of them skip where there is
// no device, but for the first.

#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <sstream>

#include "runtime/compare.h"
#include "runtime/models.h"
#include "runtime/training_schedules.h"
#include "runtime/updates.h"

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

TEST(Devices, AreOneForEachRank) {
  PipelineOptions options = options_for(mlp());
  options.devices = {at::kCPU};
  const auto schedule = make_schedule({.name = "1F1B", .ranks = 2, .microbatches = 4});
  EXPECT_THROW(Pipeline(schedule, cut(mlp(), 2), options), ArgumentError);
}

/// With everything on the first CUDA device, whatever the other tests use.
class OnCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (test_world()) GTEST_SKIP() << "it is for one process";
    if (!torch::cuda::is_available()) GTEST_SKIP() << "there is no CUDA device";
    device_ = std::make_unique<OnDevice>(at::Device(at::kCUDA, 0));
  }

  static Pipeline make(const Model& model, const Schedule& schedule, bool cuda_graph = true) {
    PipelineOptions options = options_for(model);
    options.cuda_graph = cuda_graph;
    return {schedule, cut(model, schedule.stage_count()), options};
  }

 private:
  std::unique_ptr<OnDevice> device_;
};

/// The same data with other numbers for each step.
std::vector<MicrobatchValues> data_of_step(const Model& model, Microbatch microbatches, int step) {
  std::vector<MicrobatchValues> data = model.data(microbatches);
  for (MicrobatchValues& microbatch : data) {
    for (at::Tensor& input : microbatch.inputs) {
      if (input.is_floating_point()) input = input + 0.1 * step;
    }
  }
  return data;
}

/// Steps of a pipeline beside the unsplit model; the last one's result.
StepResult expect_steps(Pipeline& pipeline, const Model& model, int steps) {
  StepResult result;
  for (int step = 0; step < steps; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    const auto data = data_of_step(model, pipeline.plan().microbatches, step);
    Unsplit unsplit(model);
    const auto expected = unsplit.run(data);
    pipeline.zero_grad();
    result = pipeline.step(presplit(data));
    expect_losses(result, expected);
    expect_gradients(pipeline, unsplit.gradients());
  }
  return result;
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

const Schedule& interleaved() {
  static const Schedule schedule =
      make_schedule({.name = "Interleaved1F1B", .ranks = 2, .microbatches = 4, .stages_per_rank = 2});
  return schedule;
}

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

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(const Pipeline&)>;

/// Steps of pipelines that have updates, as graphs and without.
class UpdatesInGraphs : public OnCuda {
 protected:
  struct Side {
    Side(Pipeline made, const MakeOptimizer& make_optimizer, std::optional<double> clip)
        : pipeline(std::move(made)),
          optimizer(make_optimizer(pipeline)),
          update(dynamic_cast<Update&>(*optimizer), [this, clip] {
            if (clip) pipeline.clip_grad_norm(*clip);
          }) {}
    Side(const Side&) = delete;  // the update refers to it
    Side& operator=(const Side&) = delete;

    StepResult step(const std::vector<MicrobatchValues>& data, StepOptions options) {
      options.update = &update;
      StepResult result = pipeline.step(presplit(data), options);
      pipeline.zero_grad();
      return result;
    }

    Pipeline pipeline;
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    Noted update;
  };

  /// One of each, which get the same.
  struct Both {
    Both(const Model& model, const Schedule& schedule, const MakeOptimizer& make_optimizer,
         std::optional<double> clip = {})
        : graphs(make(model, schedule), make_optimizer, clip),
          plain(make(model, schedule, /*cuda_graph=*/false), make_optimizer, clip) {}

    /// A step of each; that of the graph.
    StepResult step(const std::vector<MicrobatchValues>& data, const StepOptions& options = {}) {
      const StepResult expected = plain.step(data, options);
      StepResult result = graphs.step(data, options);
      EXPECT_EQ(result.skipped_for, expected.skipped_for);
      EXPECT_TRUE(!expected.skipped_for.empty() || close(result.loss, expected.loss));
      expect_same();
      return result;
    }

    void expect_same() const {
      const std::vector<at::Tensor> actual = copies_of(graphs.pipeline);
      const std::vector<at::Tensor> expected = copies_of(plain.pipeline);
      for (std::size_t at = 0; at < actual.size(); ++at) EXPECT_TRUE(close(actual[at], expected[at])) << at;
      EXPECT_EQ(graphs.optimizer->state().size(), plain.optimizer->state().size());
    }

    Side graphs;
    Side plain;
  };

  static auto count(const Side& side, const std::string& call) {
    return std::ranges::count(side.update.calls, call);
  }

  /// The third of four microbatches is infinite.
  static std::vector<MicrobatchValues> broken(const Model& model) {
    auto data = model.data(4);
    for (at::Tensor& input : data[2].inputs) input.fill_(std::numeric_limits<float>::infinity());
    return data;
  }
};

class EveryUpdateInGraphs : public UpdatesInGraphs, public testing::WithParamInterface<ScheduleInfo> {};
INSTANTIATE_TEST_SUITE_P(Every, EveryUpdateInGraphs, testing::ValuesIn(training_schedules()),
                         schedule_test_name);

TEST_P(EveryUpdateInGraphs, TrainAsWithout) {
  const Model model = mlp();
  for (const MakeOptimizer& make_optimizer : {MakeOptimizer(fused_sgd), MakeOptimizer(fused_adamw)}) {
    for (const std::optional<double> clip : {std::optional<double>(), std::optional<double>(0.05)}) {
      Both both(model, make_schedule(GetParam(), 2, 4), make_optimizer, clip);
      for (int step = 0; step < 8; ++step) {
        SCOPED_TRACE("step " + std::to_string(step));
        if (step == 5) {
          for (Side* side : {&both.graphs, &both.plain}) {
            side->optimizer->param_groups()[0].options().set_lr(0.002);
          }
        }
        EXPECT_EQ(both.step(data_of_step(model, 4, step)).replayed, step >= 2)
            << both.graphs.pipeline.not_captured_for();
      }
      EXPECT_EQ(count(both.graphs, "prepare"), 8);
      EXPECT_EQ(count(both.graphs, "apply"), 3) << "twice before, once to record it";
    }
  }
}

TEST_F(UpdatesInGraphs, LeaveStepsOutWhoseNumbersAreNotFinite) {
  const Model model = mlp();
  for (const MakeOptimizer& make_optimizer : {MakeOptimizer(fused_sgd), MakeOptimizer(fused_adamw)}) {
    for (const std::optional<double> clip : {std::optional<double>(), std::optional<double>(0.05)}) {
      Both both(model, interleaved(), make_optimizer, clip);
      const StepOptions skip{.non_finite = NonFinite::Skip};
      for (int step = 0; step < 10; ++step) {
        SCOPED_TRACE("step " + std::to_string(step));
        // Before there is a graph, where it is recorded, and when it is replayed.
        const bool breaks = step == 0 || step == 3 || step == 6;
        const auto before = copies_of(both.graphs.pipeline);
        const StepResult result = both.step(breaks ? broken(model) : data_of_step(model, 4, step), skip);
        EXPECT_EQ(result.skipped_for.empty(), !breaks);
        EXPECT_EQ(result.replayed, step >= 3);
        const auto after = copies_of(both.graphs.pipeline);
        for (std::size_t at = 0; at < after.size(); ++at) {
          EXPECT_EQ(torch::equal(after[at], before[at]), breaks) << at;
        }
      }
      EXPECT_EQ(both.graphs.pipeline.skipped_steps(), 3);
      EXPECT_EQ(count(both.graphs, "revert"), 3);
      EXPECT_THROW(both.graphs.step(broken(model), {.non_finite = NonFinite::Stop}), NonFiniteError);
      both.expect_same();
      for (const at::Tensor& each : both.graphs.pipeline.parameters()) EXPECT_FALSE(each.grad().defined());
    }
  }
}

TEST_F(UpdatesInGraphs, CountOnlyTheStepsThatWereMade) {
  const Model model = mlp();
  Both both(model, interleaved(), fused_adamw);
  for (int step = 0; step < 6; ++step) {
    both.step(step == 4 ? broken(model) : model.data(4), {.non_finite = NonFinite::Skip});
  }
  EXPECT_EQ(steps_of(*both.graphs.optimizer),
            5 * static_cast<std::int64_t>(both.graphs.pipeline.parameters().size()));
  EXPECT_EQ(steps_of(*both.graphs.optimizer), steps_of(*both.plain.optimizer));
}

TEST_F(UpdatesInGraphs, AreRecordedAgainWhenAStateIsLoaded) {
  const Model model = mlp();
  for (const MakeOptimizer& make_optimizer : {MakeOptimizer(fused_sgd), MakeOptimizer(fused_adamw)}) {
    Both both(model, interleaved(), make_optimizer);
    for (int step = 0; step < 2; ++step) both.step(model.data(4));
    std::map<Side*, std::pair<std::string, Pipeline::StateDict>> saved;
    for (Side* side : {&both.graphs, &both.plain}) {
      std::stringstream file;
      torch::save(*side->optimizer, file);
      saved[side].first = file.str();
      for (const auto& [name, value] : side->pipeline.state_dict()) saved[side].second[name] = value.clone();
    }
    for (int step = 2; step < 5; ++step) EXPECT_TRUE(both.step(data_of_step(model, 4, step)).replayed);
    // What a graph has written to is still there, so that new memory is really other memory.
    std::vector<at::Tensor> old;
    for (Side* side : {&both.graphs, &both.plain}) {
      for (const auto& [parameter, state] : side->optimizer->state()) {
        if (const auto* adamw = dynamic_cast<const torch::optim::AdamWParamState*>(state.get())) {
          old.insert(old.end(), {adamw->exp_avg(), adamw->exp_avg_sq()});
        } else {
          old.push_back(static_cast<const torch::optim::SGDParamState&>(*state).momentum_buffer());
        }
      }
      std::stringstream file(saved[side].first);
      torch::load(*side->optimizer, file);
      side->pipeline.load_state_dict(saved[side].second);
    }
    for (int step = 0; step < 5; ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      EXPECT_EQ(both.step(data_of_step(model, 4, step)).replayed, step >= 2);
    }
  }
}

TEST_F(UpdatesInGraphs, ComeAfterThemWithGradientsOfEarlierSteps) {
  const Model model = mlp();
  Both both(model, interleaved(), fused_sgd);
  for (int step = 0; step < 8; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    const auto data = data_of_step(model, 4, step);
    for (Side* side : {&both.graphs, &both.plain}) side->pipeline.step(presplit(data), {.accumulation = 2});
    both.step(data, {.accumulation = 2});
  }
}

TEST_F(UpdatesInGraphs, ComeAfterThemWithTiedParameters) {
  const Model model = gpt();
  Both both(model, interleaved(), fused_sgd);
  for (int step = 0; step < 5; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    EXPECT_EQ(both.step(model.data(4), {.non_finite = NonFinite::Skip}).replayed, step >= 2);
  }
  EXPECT_EQ(count(both.graphs, "apply"), 5);
}

TEST_F(UpdatesInGraphs, ThatWaitForTheDeviceAreMadeWithout) {
  const Model model = mlp();
  Both both(model, interleaved(), fused_sgd);
  Noted looking(dynamic_cast<Update&>(*both.graphs.optimizer),
                [&] { both.graphs.pipeline.grad_norm().item<double>(); });
  for (int step = 0; step < 5; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    const auto data = data_of_step(model, 4, step);
    EXPECT_FALSE(both.graphs.pipeline.step(presplit(data), {.update = &looking}).replayed);
    both.graphs.pipeline.zero_grad();
    both.plain.step(data, {});
    both.expect_same();
  }
  EXPECT_EQ(std::ranges::count(looking.calls, "prepare"), 5);
  EXPECT_NE(both.graphs.pipeline.not_captured_for(), "");
}

class OnDevices : public OnCuda {};

TEST_F(OnDevices, RanksExchangeValuesBetweenThem) {
  const at::Device cuda(at::kCUDA, 0);
  for (const Model& model : {mlp(), gpt()}) {
    SCOPED_TRACE(model.name);
    const Schedule schedule = make_schedule({.name = "1F1B", .ranks = 3, .microbatches = 4});
    PipelineOptions options = options_for(model);
    options.devices = {cuda, at::kCPU, cuda};
    options.cuda_graph = true;
    Pipeline pipeline(schedule, cut(model, 3), options);
    expect_steps(pipeline, model, 3);
    EXPECT_EQ(pipeline.stage(1).module->parameters().at(0).device(), at::kCPU);
    EXPECT_EQ(pipeline.not_captured_for(), "the ranks are on several devices");
  }
}

/// Large enough for the device to fall behind, so that what is not ordered shows.
TEST_F(OnDevices, StreamsAreOrderedUnderLoad) {
  Model model = mlp();
  model.layers.clear();
  for (int layer = 0; layer < 8; ++layer) model.layers.push_back(dense(1024, 1024));
  model.data = [](Microbatch microbatches) {
    std::vector<MicrobatchValues> data;
    for (Microbatch k = 0; k < microbatches; ++k) {
      const auto seed = static_cast<std::uint64_t>(k);
      data.push_back({.inputs = {numbers(seed, {512, 1024})},
                      .targets = {numbers(seed + 100, {512, 1024})},
                      .stage_inputs = {}});
    }
    return data;
  };
  const auto data = model.data(8);
  Unsplit unsplit(model);
  const auto expected = unsplit.run(data);
  for (const char* name : {"DualPipeV", "ZBVZeroBubble", "Interleaved1F1B", "1F1B"}) {
    SCOPED_TRACE(name);
    const auto schedule = make_schedule({.name = name, .ranks = 4, .microbatches = 8});
    Pipeline pipeline = make(model, schedule, /*cuda_graph=*/false);
    for (int step = 0; step < 10; ++step) {
      pipeline.zero_grad();
      expect_losses(pipeline.step(presplit(data)), expected);
      expect_gradients(pipeline, unsplit.gradients());
    }
  }
}

TEST_F(OnDevices, TimesAreThoseOfTheDevice) {
  const Model model = mlp();
  const auto schedule = make_schedule({.name = "1F1B", .ranks = 2, .microbatches = 4});
  Pipeline pipeline = make(model, schedule, /*cuda_graph=*/false);
  pipeline.step(presplit(model.data(4)));
  const Timeline timeline = pipeline.step(presplit(model.data(4)), {.trace = true}).timeline;
  std::map<std::pair<int, int>, double> forward_ends;
  for (const auto& rank : timeline.ranks) {
    double before = 0;
    for (const TimedAction& timed : rank) {
      if (!is_compute(timed.action.kind)) continue;
      EXPECT_GE(timed.start, before);
      EXPECT_GT(timed.end, timed.start);
      before = timed.end;
      if (timed.action.kind == Kind::F)
        forward_ends[{timed.action.stage, timed.action.microbatch}] = timed.end;
    }
  }
  for (const TimedAction& timed : timeline.ranks.at(1)) {
    if (timed.action.kind != Kind::F) continue;
    EXPECT_GE(timed.start, (forward_ends[{0, timed.action.microbatch}])) << to_text(timed.action);
  }
}

}  // namespace
}  // namespace pipewright
