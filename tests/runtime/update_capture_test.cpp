// Updates of parameters as parts of CUDA graphs. All of them skip where there is no device.

#include <gtest/gtest.h>

#include <sstream>

#include "runtime/on_cuda.h"
#include "runtime/training_schedules.h"
#include "runtime/updates.h"

namespace pipewright {
namespace {

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
      for (const auto& [name, value] : side->pipeline.state_dict()) {
        saved[side].second[name] = value.detach().clone();
      }
    }
    for (int step = 2; step < 5; ++step) {
      EXPECT_TRUE(both.step(data_of_step(model, 4, step)).replayed)
          << both.graphs.pipeline.not_captured_for();
    }
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

}  // namespace
}  // namespace pipewright
