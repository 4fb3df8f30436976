#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/compare.h"
#include "runtime/models.h"
#include "runtime/training_schedules.h"

namespace pipewright {
namespace {

class Scenario : public testing::TestWithParam<ScheduleInfo> {
 protected:
  static Schedule schedule(Rank ranks, Microbatch microbatches) {
    return make_schedule(GetParam(), ranks, microbatches);
  }
};
INSTANTIATE_TEST_SUITE_P(Every, Scenario, testing::ValuesIn(training_schedules()), schedule_test_name);

/// A model of width 4 that starts and ends with two dense layers.
Model around(const LayerFactory& middle) {
  Model model = dropout();
  model.name = "Around";
  model.layers = {dense(4, 4), dense(4, 4), middle, dense(4, 4), dense(4, 4)};
  return model;
}

TEST_P(Scenario, OneMicrobatchPassesEightRanks) { expect_parity(mlp(), schedule(8, 1)); }

TEST_P(Scenario, BoolMaskCrossesABoundary) {
  Model model = around(function([](const Values& inputs) { return Values{inputs.at(0), inputs.at(0) > 0}; }));
  model.layers[3] = function([](const Values& inputs) {
    EXPECT_EQ(inputs.at(1).scalar_type(), at::kBool);
    return Values{torch::where(inputs.at(1), inputs.at(0) * 2, inputs.at(0) * 0.5)};
  });
  for (const Rank ranks : {2, 3, 5}) expect_parity(model, schedule(ranks, 3));
}

/// Text of another length in each microbatch.
std::vector<MicrobatchValues> texts(const std::vector<std::int64_t>& lengths) {
  auto data = gpt().data(static_cast<Microbatch>(lengths.size()));
  for (std::size_t k = 0; k < lengths.size(); ++k) {
    data[k].inputs[0] = data[k].inputs[0].slice(1, 0, lengths[k]);
    data[k].targets[0] = data[k].targets[0].slice(1, 0, lengths[k]);
  }
  return data;
}

TEST_P(Scenario, SequenceLengthChangesBetweenStepsAndBetweenMicrobatches) {
  Pipeline pipeline = make_pipeline(gpt(), schedule(2, 3));
  Unsplit unsplit(gpt());
  for (const std::vector<std::int64_t>& lengths :
       {std::vector<std::int64_t>{5, 5, 5}, {2, 2, 2}, {3, 5, 1}, {1, 2, 4}}) {
    SCOPED_TRACE(testing::PrintToString(lengths));
    const auto data = texts(lengths);
    expect_losses(pipeline.step(presplit(data)), unsplit.run(data));
    expect_gradients(pipeline, unsplit.gradients());
  }
}

TEST_P(Scenario, BatchSizeChangesBetweenStepsAndNeedNotDivideEvenly) {
  Pipeline pipeline = make_pipeline(mlp(), schedule(2, 3));
  Unsplit unsplit(mlp());
  for (const std::int64_t rows : {9, 3, 7, 8, 20}) {
    SCOPED_TRACE(std::to_string(rows) + " rows");
    const at::Tensor inputs = numbers(1, {rows, 3});
    const at::Tensor targets = numbers(2, {rows, 9});
    const auto input_parts = inputs.tensor_split(3);
    const auto target_parts = targets.tensor_split(3);
    std::vector<MicrobatchValues> parts;
    for (std::size_t k = 0; k < 3; ++k) parts.push_back({{input_parts[k]}, {target_parts[k]}, {}});
    expect_losses(pipeline.step({inputs}, {targets}), unsplit.run(parts));
    expect_gradients(pipeline, unsplit.gradients());
  }
}

TEST_P(Scenario, GradientIsMissingInOneMicrobatch) {
  for (const Microbatch missing : {0, 1, 2}) {
    SCOPED_TRACE("missing in microbatch " + std::to_string(missing));
    const Model model = around(function([missing](const Values& inputs) {
      const at::Tensor& x = inputs.at(0);
      return Values{microbatch_now() == missing ? torch::ones_like(x) : x.sin()};
    }));
    for (const Rank ranks : {1, 2, 3, 5}) expect_parity(model, schedule(ranks, 3));
    for (const Rank ranks : {1, 2, 3}) expect_parity(model, schedule(ranks, 1));
  }
}

TEST_P(Scenario, OutputIsUnusedInOneMicrobatch) {
  for (const Microbatch unused : {0, 1}) {
    SCOPED_TRACE("unused in microbatch " + std::to_string(unused));
    Model model = around(function([](const Values& inputs) { return inputs; }));
    // From layer 1 to layer 3 there are two values, each with its own way back.
    model.layers[1] =
        function([](const Values& inputs) { return Values{inputs.at(0).cos(), inputs.at(0).exp()}; });
    model.layers[3] = function([unused](const Values& inputs) {
      return Values{microbatch_now() == unused ? inputs.at(0) : inputs.at(0) * inputs.at(1)};
    });
    for (const Rank ranks : {1, 2, 3, 5}) expect_parity(model, schedule(ranks, 2));
  }
}

TEST_P(Scenario, LossDependsOnNoParameterInOneMicrobatch) {
  Model model = mlp();
  model.loss = [](const Values& outputs, const Values& targets) {
    const at::Tensor error = squared_error(outputs, targets);
    return microbatch_now() == 1 ? error.detach() : error;
  };
  for (const Rank ranks : {1, 2, 3}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    expect_parity(model, schedule(ranks, 3));
  }
}

TEST_P(Scenario, NothingRequiresAGradient) {
  Model model = mlp();
  model.loss = [](const Values& outputs, const Values& targets) {
    return squared_error(outputs, targets).detach();
  };
  expect_parity(model, schedule(2, 3));
}

TEST_P(Scenario, GradientsAccumulateOverFourSteps) {
  for (const Model& model : {mlp(), gpt()}) {
    SCOPED_TRACE(model.name);
    Pipeline pipeline = make_pipeline(model, schedule(2, 3));
    Unsplit unsplit(model);
    const auto data = model.data(12);
    for (std::ptrdiff_t step = 0; step < 4; ++step) {
      const std::vector part(data.begin() + 3 * step, data.begin() + 3 * (step + 1));
      expect_losses(pipeline.step(presplit(part), {.accumulation = 4}), unsplit.run(part, {}, 4));
    }
    expect_gradients(pipeline, unsplit.gradients());
    Unsplit at_once(model);
    at_once.run(data);
    expect_gradients(pipeline, at_once.gradients());
  }
}

/// Layers that scale what they get; any number of elements passes them.
class Scale : public Layer {
 public:
  Scale() { factor_ = register_parameter("factor", torch::zeros({1})); }
  Values forward(const Values& inputs) override { return {inputs.at(0) * factor_}; }

 private:
  at::Tensor factor_;
};

TEST_P(Scenario, PayloadsOfAnySizePass) {
  const LayerFactory scale = [] { return std::make_shared<Scale>(); };
  Model model{"Scale", std::vector(4, scale), {}, {}};
  model.loss = [](const Values& outputs, const Values&) {
    return outputs.at(0).square().sum() /
           static_cast<double>(std::max<std::int64_t>(1, outputs.at(0).numel()));
  };
  Pipeline pipeline = make_pipeline(model, schedule(2, 3));
  Unsplit unsplit(model);
  for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{0, 0, 0},
                                                 {1, 1, 1},
                                                 {255, 256, 257},
                                                 {65'537, 65'537, 65'537},
                                                 {0, 1 << 20, 1},
                                                 {1 << 18, 3, 0}}) {
    SCOPED_TRACE(testing::PrintToString(sizes));
    std::vector<MicrobatchValues> data;
    for (const std::int64_t size : sizes) {
      data.push_back({{numbers(static_cast<std::uint64_t>(size), {size})}, {}, {}});
    }
    expect_losses(pipeline.step(presplit(data)), unsplit.run(data));
    expect_gradients(pipeline, unsplit.gradients());
  }
}

TEST_P(Scenario, StagesTakeInputsOfTheirOwn) {
  // The target goes straight to the last stage, which computes the loss itself.
  const Model model = mlp();
  const Schedule order = schedule(2, 3);
  const auto build = [&](Stage stage) {
    StageModel made = cut(model, order.stage_count())(stage);
    if (stage < order.last_stage()) return made;
    made.forward = [inner = made.forward](const Values& inputs) {
      return Values{squared_error(inner({inputs.at(0)}), {inputs.at(1)}), inputs.at(1)};
    };
    return made;
  };
  auto data = model.data(3);
  Unsplit unsplit(model);
  const auto expected = unsplit.run(data);
  for (MicrobatchValues& each : data) each.stage_inputs[order.last_stage()] = std::exchange(each.targets, {});
  Pipeline pipeline(order, build);
  expect_losses(pipeline.step(presplit(data)), expected);
  expect_gradients(pipeline, unsplit.gradients());
}

TEST(TwoRanks, WhosePreviousAndNextPeerAreTheSameNeverMixMessages) {
  // Boundaries of equal shape, where a crossed message would pass unseen, and of different ones.
  const LayerFactory wide = dense(4, 4);
  Model even = dropout();
  even.layers = std::vector(8, wide);
  for (const Model& model : {even, mlp()}) {
    for (const char* name : {"Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble"}) {
      for (const int stages_per_rank : {2, 3, 4}) {
        SCOPED_TRACE(std::string(name) + ", " + std::to_string(stages_per_rank) + " stages a rank");
        expect_parity(
            model,
            make_schedule({.name = name, .ranks = 2, .microbatches = 5, .stages_per_rank = stages_per_rank}));
      }
    }
    for (const char* name : {"ZBVZeroBubble", "DualPipeV", "V-Half", "V-Min", "1F1B", "ZB-H2"}) {
      SCOPED_TRACE(name);
      expect_parity(model, make_schedule({.name = name, .ranks = 2, .microbatches = 5}));
    }
  }
}

}  // namespace
}  // namespace pipewright
