#include "runtime/executor/held_memory.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pipewright/runtime/measured.h"
#include "pipewright/runtime/memory.h"
#include "pipewright/schedule/csv.h"
#include "pipewright/schedule/generate.h"
#include "pipewright/schedule/simulate.h"
#include "runtime/compare.h"

namespace pipewright {
namespace {

constexpr std::int64_t kKibibyte = 1024;

at::Tensor one_kibibyte() { return torch::rand({16, 16}); }

TEST(HeldMemory, IsOfWhatOperatorsMadeAndSomebodyHolds) {
  HeldMemory memory;
  const at::Tensor x = one_kibibyte().requires_grad_();
  at::Tensor y;
  {
    const HeldMemory::Watch watch(&memory);
    y = x.exp().sin();  // the sine's backward needs the exponential, and that needs itself
    EXPECT_EQ(memory.bytes(), 2 * kKibibyte);
    (y * 2).sum();
  }
  EXPECT_EQ(memory.bytes(), 2 * kKibibyte);
  y.reset();
  EXPECT_EQ(memory.bytes(), 0);
}

TEST(HeldMemory, IsNotOfWhatWasThereNorOfWhatIsMadeElsewhere) {
  HeldMemory memory;
  const at::Tensor weight = one_kibibyte();
  at::Tensor inside;
  at::Tensor view;
  {
    const HeldMemory::Watch watch(&memory);
    view = weight.t().slice(0, 0, 4);
    weight.add_(1);
    inside = weight + 1;
  }
  const at::Tensor outside = inside + 1;
  const at::Tensor again = outside.view({-1});
  EXPECT_EQ(memory.bytes(), kKibibyte);
  {
    const HeldMemory::Watch nothing(nullptr);
    view = inside + 1;
  }
  EXPECT_EQ(memory.bytes(), kKibibyte);
}

TEST(HeldMemory, IsAlsoOfWhatOperatorsWithinOthersMade) {
  HeldMemory memory;
  const at::Tensor logits = one_kibibyte().requires_grad_();
  const at::Tensor targets = torch::zeros({16}, torch::kLong);
  at::Tensor loss;
  {
    const HeldMemory::Watch watch(&memory);
    loss = torch::nn::functional::cross_entropy(logits, targets);
  }
  // The logarithms of the probabilities, the loss and the sum of the targets' weights.
  EXPECT_EQ(memory.bytes(), kKibibyte + 2 * 4);
}

TEST(HeldMemory, OfListsIsThatOfTheirTensors) {
  HeldMemory memory;
  const at::Tensor whole = one_kibibyte();
  std::vector<at::Tensor> parts;
  std::vector<at::Tensor> sums;
  {
    const HeldMemory::Watch watch(&memory);
    parts = whole.unbind();
    sums = at::_foreach_add(parts, 1);
    const at::Tensor joined = at::stack(sums);
    EXPECT_EQ(memory.bytes(), 2 * kKibibyte);
  }
  EXPECT_EQ(memory.bytes(), kKibibyte);
}

TEST(HeldMemory, MovesWithValuesFromStageToStage) {
  HeldMemory sender;
  HeldMemory receiver;
  Values values;
  {
    const HeldMemory::Watch watch(&sender);
    const at::Tensor x = one_kibibyte().requires_grad_();
    values = {x + 1, (x + 1).tanh(), (x + 1).view({-1}), {}};
  }
  EXPECT_EQ(sender.bytes(), 4 * kKibibyte);  // the leaf is among them
  sender.leave_out(values);
  EXPECT_EQ(sender.bytes(), 2 * kKibibyte);  // and the hyperbolic tangent, which its backward needs
  receiver.add(values);
  EXPECT_EQ(receiver.bytes(), 3 * kKibibyte);
  values = {};
  EXPECT_EQ(receiver.bytes(), 0);
}

/// What this thread has allocated on the CPU since it was made: now and at most.
class Allocations {
 public:
  Allocations() : guard_(c10::DebugInfoKind::PROFILER_STATE, counts_) {}
  void start_again() { counts_->peak = counts_->now = 0; }
  std::int64_t peak() const { return counts_->peak; }

 private:
  struct Counts : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void* /*ptr*/, std::int64_t change, std::size_t /*allocated*/,
                           std::size_t /*reserved*/, c10::Device device) override {
      if (!device.is_cpu()) return;
      now += change;
      peak = std::max(peak, now);
    }
    bool memoryProfilingEnabled() const override { return test_device().is_cpu(); }
    std::int64_t now = 0;
    std::int64_t peak = 0;
  };
  std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
  c10::DebugInfoGuard guard_;
};

/// As in a transformer, with a residual: its last operator needs nothing for its backward.
class Block : public Layer {
 public:
  Block() {
    norm_ = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    up_ = register_module("up", torch::nn::Linear(kWidth, 4 * kWidth));
    down_ = register_module("down", torch::nn::Linear(4 * kWidth, kWidth));
  }
  Values forward(const Values& inputs) override {
    const at::Tensor& x = inputs.at(0);
    return {x + down_(torch::gelu(up_(norm_(x))))};
  }
  static constexpr std::int64_t kWidth = 64;

 private:
  torch::nn::LayerNorm norm_ = nullptr;
  torch::nn::Linear up_ = nullptr;
  torch::nn::Linear down_ = nullptr;
};

Model blocks() {
  Model model = mlp();
  model.name = "Blocks";
  model.layers.assign(4, [] { return std::make_shared<Block>(); });
  model.data = [](Microbatch microbatches) {
    std::vector<MicrobatchValues> data;
    for (Microbatch k = 0; k < microbatches; ++k) {
      const auto seed = static_cast<std::uint64_t>(k);
      data.push_back({.inputs = {numbers(seed, {128, Block::kWidth})},
                      .targets = {numbers(seed + 100, {128, Block::kWidth})},
                      .stage_inputs = {}});
    }
    return data;
  };
  return model;
}

/// Predicted from one measured step, and what the allocator gave in another; in MiB.
struct Peaks {
  double predicted;
  double allocated;
};

Peaks peaks_of(const Schedule& schedule) {
  const Model model = blocks();
  Allocations on_cpu;
  Pipeline pipeline = make_local_pipeline(model, schedule);
  const std::vector<MicrobatchValues> data = model.data(schedule.microbatches);
  const Timeline timeline = pipeline.step(presplit(data), {.trace = true}).timeline;
  const Costs costs = measured_costs({&timeline, 1});
  const Batch batch = presplit(data);
  pipeline.step(batch);  // gradients have their memory from now on
  on_cpu.start_again();
  reset_peak_memory(test_device());
  const std::int64_t before = device_memory(test_device()).peak_allocated;
  pipeline.step(batch);
  const std::int64_t allocated = device_memory(test_device()).peak_allocated - before + on_cpu.peak();
  return {.predicted = measure(simulate(pipeline.plan(), costs), costs).peak_activation(),
          .allocated = static_cast<double>(allocated) / (1 << 20)};
}

/// All forwards, all input gradients, all weight gradients.
Schedule weights_last(Microbatch microbatches) {
  std::string cells;
  for (const char* kind : {"F", "I", "W"}) {
    for (Microbatch k = 0; k < microbatches; ++k) {
      for (const char* stage : std::string(kind) == "F" ? std::vector{"0", "1"} : std::vector{"1", "0"}) {
        cells += (cells.empty() ? "" : ",") + std::string(stage) + kind + std::to_string(k);
      }
    }
  }
  return parse_csv(cells + "\n");
}

/// Each microbatch as far as its weight gradients, which wait until the end.
Schedule weights_after_all(Microbatch microbatches) {
  std::string cells;
  std::string last;
  for (Microbatch k = 0; k < microbatches; ++k) {
    const std::string of = std::to_string(k);
    cells += (k == 0 ? "0F" : ",0F") + of + ",1F" + of + ",1I" + of + ",0I" + of;
    last += ",1W" + of + ",0W" + of;
  }
  return parse_csv(cells + last + "\n");
}

/// What operators need for a moment, and nobody holds, is the same however many microbatches there are.
void expect_predicted_growth(const std::function<Schedule(Microbatch)>& schedule) {
  const Peaks few = peaks_of(schedule(2));
  const Peaks many = peaks_of(schedule(6));
  EXPECT_NEAR(many.allocated - few.allocated, many.predicted - few.predicted, 0.005 * many.predicted);
  EXPECT_GE(many.allocated, many.predicted);
}

std::function<Schedule(Microbatch)> on_one_rank(const char* name) {
  return [name](Microbatch microbatches) {
    return make_schedule({.name = name, .ranks = 1, .microbatches = microbatches});
  };
}

TEST(MeasuredMemory, PredictsWhatTheAllocatorGives) {
  if (test_world()) GTEST_SKIP() << "it is for one process";
  expect_predicted_growth(on_one_rank("GPipe"));
  expect_predicted_growth(on_one_rank("1F1B"));
  expect_predicted_growth(weights_last);
  expect_predicted_growth(weights_after_all);
}

TEST(MeasuredMemory, IsThatOfStagesWhereverTheyAre) {
  const Schedule schedule = make_schedule({.name = "ZB-H1", .ranks = 2, .microbatches = 3});
  const auto costs_of = [&](Pipeline pipeline) {
    const Timeline timeline = pipeline.step(presplit(blocks().data(3)), {.trace = true}).timeline;
    return measured_costs({&timeline, 1});
  };
  const Costs apart = costs_of(make_pipeline(blocks(), schedule));
  const Costs together = costs_of(make_local_pipeline(blocks(), weights_last(3)));
  for (std::size_t stage = 0; stage < 2; ++stage) {
    EXPECT_GT(apart.stages[stage].activation, 0);
    EXPECT_DOUBLE_EQ(apart.stages[stage].activation, together.stages[stage].activation) << stage;
    EXPECT_EQ(apart.stages[stage].held_for_w, together.stages[stage].held_for_w) << stage;
  }
}

TEST(MeasuredMemory, FollowsTheSizesOfInputs) {
  Pipeline pipeline = make_local_pipeline(blocks(), weights_last(2));
  const auto costs_with = [&](std::int64_t rows) {
    std::vector<MicrobatchValues> data = blocks().data(2);
    for (MicrobatchValues& microbatch : data) {
      microbatch.inputs[0] = microbatch.inputs[0].narrow(0, 0, rows);
      microbatch.targets[0] = microbatch.targets[0].narrow(0, 0, rows);
    }
    const Timeline timeline = pipeline.step(presplit(data), {.trace = true}).timeline;
    return measured_costs({&timeline, 1}).stages.at(0);
  };
  const StageCosts whole = costs_with(128);
  for (const std::int64_t rows : {128, 64, 64, 128}) {
    const StageCosts costs = costs_with(rows);
    const double share = static_cast<double>(rows) / 128;
    EXPECT_DOUBLE_EQ(costs.activation, share * whole.activation) << rows;
    EXPECT_DOUBLE_EQ(costs.held_for_w.value_or(0), share * whole.held_for_w.value_or(0)) << rows;
  }
}

TEST(MeasuredMemory, IsNothingForWWhereIHasDoneItAll) {
  const Model model = blocks();
  const StageFactory build = cut(model, 2);
  Pipeline pipeline(
      weights_last(2),
      [&](Stage stage) {
        StageModel stage_model = build(stage);
        stage_model.split_backward = stage == 0;
        return stage_model;
      },
      options_for(model));
  const Timeline timeline = pipeline.step(presplit(model.data(2)), {.trace = true}).timeline;
  const Costs costs = measured_costs({&timeline, 1});
  EXPECT_GT(costs.stages[0].held_for_w, 0);
  EXPECT_EQ(costs.stages[1].held_for_w, 0);
}

}  // namespace
}  // namespace pipewright
