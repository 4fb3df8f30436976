#include "pipewright/runtime/microbatch.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "pipewright/base/error.h"

namespace pipewright {
namespace {

Batch batch_of(Values inputs, Values targets = {}) {
  Batch batch;
  batch.inputs = std::move(inputs);
  batch.targets = std::move(targets);
  return batch;
}

std::string refusal(const Batch& batch, const SplitSpec& spec, Microbatch microbatches) {
  try {
    split_batch(batch, spec, microbatches);
  } catch (const ArgumentError& error) {
    return error.what();
  }
  return "";
}

TEST(SplitBatch, CutsEveryValueAlongDimensionZero) {
  const auto parts = split_batch(
      batch_of({torch::arange(6).view({3, 2}), torch::arange(3)}, {torch::arange(10, 13)}), {}, 3);
  ASSERT_EQ(parts.size(), 3U);
  for (int k = 0; k < 3; ++k) {
    const MicrobatchValues& part = parts[static_cast<std::size_t>(k)];
    ASSERT_EQ(part.inputs.size(), 2U);
    EXPECT_TRUE(part.inputs[0].equal(torch::tensor({{2 * k, 2 * k + 1}}, at::kLong)));
    EXPECT_TRUE(part.inputs[1].equal(torch::tensor({k}, at::kLong)));
    EXPECT_TRUE(part.targets.at(0).equal(torch::tensor({10 + k}, at::kLong)));
  }
}

TEST(SplitBatch, GivesTheFirstMicrobatchesOneMoreWhereSizesDoNotDivide) {
  const auto parts = split_batch(batch_of({torch::arange(8)}), {}, 3);
  EXPECT_TRUE(parts[0].inputs[0].equal(torch::arange(0, 3)));
  EXPECT_TRUE(parts[1].inputs[0].equal(torch::arange(3, 6)));
  EXPECT_TRUE(parts[2].inputs[0].equal(torch::arange(6, 8)));
}

TEST(SplitBatch, CutsAlongTheDimensionToldAndReplicates) {
  const at::Tensor wide = torch::arange(12).view({2, 6});
  const at::Tensor shared = torch::arange(2);
  SplitSpec spec;
  spec.inputs = {Chunk::along(1), Chunk::replicate()};
  spec.targets = {Chunk::along(-1)};
  const auto parts = split_batch(batch_of({wide, shared, torch::arange(3)}, {wide}), spec, 3);
  for (std::size_t k = 0; k < 3; ++k) {
    const auto start = static_cast<std::int64_t>(2 * k);
    EXPECT_TRUE(parts[k].inputs.at(0).equal(wide.slice(1, start, start + 2)));
    EXPECT_TRUE(parts[k].inputs.at(1).equal(shared));
    EXPECT_EQ(parts[k].inputs.at(2).numel(), 1);
    EXPECT_TRUE(parts[k].targets.at(0).equal(wide.slice(1, start, start + 2)));
  }
}

TEST(SplitBatch, CutsTheInputsOfStages) {
  Batch batch = batch_of({torch::arange(4)});
  batch.stage_inputs[2] = {torch::arange(4).view({1, 4}), torch::arange(6)};
  SplitSpec spec;
  spec.stage_inputs[2] = {Chunk::along(1)};
  const auto parts = split_batch(batch, spec, 2);
  EXPECT_TRUE(parts[1].stage_inputs.at(2).at(0).equal(torch::tensor({{2, 3}}, at::kLong)));
  EXPECT_TRUE(parts[1].stage_inputs.at(2).at(1).equal(torch::arange(3, 6)));
}

TEST(SplitBatch, LeavesAbsentValuesAbsent) {
  const auto parts = split_batch(batch_of({torch::arange(2), at::Tensor()}), {}, 2);
  for (const MicrobatchValues& part : parts) {
    EXPECT_TRUE(part.inputs.at(0).defined());
    EXPECT_FALSE(part.inputs.at(1).defined());
  }
}

TEST(SplitBatch, TakesWhatIsAlreadySplitAsItIs) {
  Batch batch;
  batch.microbatches = {{{torch::arange(1)}, {}, {}}, {{torch::arange(5)}, {torch::ones({})}, {}}};
  const auto parts = split_batch(batch, {}, 2);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_TRUE(parts[1].inputs.at(0).is_same(batch.microbatches[1].inputs[0]));
  EXPECT_TRUE(parts[1].targets.at(0).is_same(batch.microbatches[1].targets[0]));
}

TEST(SplitBatch, RefusesAnotherNumberOfMicrobatches) {
  Batch batch;
  batch.microbatches.resize(3);
  const std::string message = refusal(batch, {}, 4);
  EXPECT_NE(message.find('3'), std::string::npos) << message;
  EXPECT_NE(message.find('4'), std::string::npos) << message;
}

TEST(SplitBatch, RefusesValuesShorterThanTheNumberOfMicrobatches) {
  const std::string message = refusal(batch_of({torch::arange(8), torch::arange(3)}), {}, 4);
  EXPECT_NE(message.find('3'), std::string::npos) << message;
  EXPECT_NE(message.find('4'), std::string::npos) << message;
  EXPECT_NE(refusal(batch_of({torch::arange(8)}, {torch::arange(2)}), {}, 4), "");
  EXPECT_EQ(refusal(batch_of({torch::arange(8)}, {torch::arange(4)}), {}, 4), "");
}

TEST(SplitBatch, RefusesDimensionsThatAreNotThere) {
  SplitSpec spec;
  spec.inputs = {Chunk::along(2)};
  EXPECT_NE(refusal(batch_of({torch::zeros({4, 4})}), spec, 2), "");
  spec.inputs = {Chunk::along(-3)};
  EXPECT_NE(refusal(batch_of({torch::zeros({4, 4})}), spec, 2), "");
  EXPECT_NE(refusal(batch_of({torch::zeros({})}), {}, 2), "");
}

const std::vector<Values> kOutputs = {{torch::ones({1, 2}), torch::tensor(3.0F), at::Tensor()},
                                      {torch::zeros({2, 2}), torch::tensor(5.0F), at::Tensor()}};

TEST(MergeOutputs, ConcatenatesAndStacks) {
  const Values merged = merge_outputs(kOutputs, {});
  ASSERT_EQ(merged.size(), 3U);
  EXPECT_TRUE(merged[0].equal(torch::tensor({{1.0F, 1.0F}, {0.0F, 0.0F}, {0.0F, 0.0F}})));
  EXPECT_TRUE(merged[1].equal(torch::tensor({3.0F, 5.0F})));
  EXPECT_FALSE(merged[2].defined());
}

TEST(MergeOutputs, MergesAsTold) {
  const std::vector<Values> outputs = {
      {torch::full({2, 1}, 1.0), torch::full({2}, 2.0), torch::full({2}, 3.0)},
      {torch::full({2, 2}, 4.0), torch::full({2}, 5.0), torch::full({2}, 6.0)}};
  const Values merged = merge_outputs(outputs, {merge_along(1), merge_sum(), merge_mean()});
  EXPECT_TRUE(merged.at(0).equal(torch::tensor({{1.0F, 4.0F, 4.0F}, {1.0F, 4.0F, 4.0F}})));
  EXPECT_TRUE(merged.at(1).equal(torch::full({2}, 7.0)));
  EXPECT_TRUE(merged.at(2).equal(torch::full({2}, 4.5)));
}

TEST(MergeOutputs, TakesAnyFunction) {
  const Merge last = [](const std::vector<at::Tensor>& parts) { return parts.back(); };
  EXPECT_TRUE(merge_outputs(kOutputs, {last}).at(0).equal(torch::zeros({2, 2})));
}

TEST(MergeOutputs, UndoesASplit) {
  const at::Tensor whole = torch::arange(22).view({2, 11});
  SplitSpec spec;
  spec.inputs = {Chunk::along(1)};
  std::vector<Values> parts;
  for (MicrobatchValues& part : split_batch(batch_of({whole}), spec, 4)) parts.push_back(part.inputs);
  EXPECT_TRUE(merge_outputs(parts, {merge_along(1)}).at(0).equal(whole));
}

}  // namespace
}  // namespace pipewright
