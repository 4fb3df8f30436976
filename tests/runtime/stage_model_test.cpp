#include "pipewright/runtime/stage_model.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>
#include <tuple>

#include "pipewright/base/error.h"
#include "pipewright/runtime/random.h"

namespace pipewright {
namespace {

const at::Tensor kOne = torch::ones({1});

at::Tensor doubled(at::Tensor x) { return x * 2; }

TEST(StageModel, WithoutAnythingHandsItsInputsOn) {
  const StageModel stage;
  const Values values{kOne, at::Tensor()};
  const Values handed = stage.forward(values);
  ASSERT_EQ(handed.size(), 2U);
  EXPECT_TRUE(handed[0].is_same(kOne));
  EXPECT_FALSE(handed[1].defined());
}

TEST(StageModel, IsMadeFromAnythingThatCanBeCalled) {
  const StageModel lambda([](const at::Tensor& x, const at::Tensor& y) { return x + y; });
  EXPECT_EQ(lambda.forward({kOne, kOne}).at(0).item<float>(), 2);
  const StageModel pointer(&doubled);
  EXPECT_EQ(pointer.forward({kOne}).at(0).item<float>(), 2);
  int calls = 0;
  const StageModel counting([calls](const Values& values) mutable {
    ++calls;
    return Values(static_cast<std::size_t>(calls), values.at(0));
  });
  counting.forward({kOne});
  EXPECT_EQ(counting.forward({kOne}).size(), 2U);
}

TEST(StageModel, TakesOptionalValues) {
  const StageModel stage([](const at::Tensor& x, std::optional<at::Tensor> y) { return y ? x + *y : x; });
  EXPECT_EQ(stage.forward({kOne, kOne}).at(0).item<float>(), 2);
  EXPECT_EQ(stage.forward({kOne, at::Tensor()}).at(0).item<float>(), 1);
}

TEST(StageModel, GivesTuplesPairsAndOptionalValues) {
  const StageModel tuple([](const at::Tensor& x) {
    return std::tuple<at::Tensor, std::optional<at::Tensor>, at::Tensor>(x, std::nullopt, x * 3);
  });
  const Values values = tuple.forward({kOne});
  ASSERT_EQ(values.size(), 3U);
  EXPECT_FALSE(values[1].defined());
  EXPECT_EQ(values[2].item<float>(), 3);
  const StageModel pair([](const at::Tensor& x) { return std::pair(x, x * 2); });
  EXPECT_EQ(pair.forward({kOne}).at(1).item<float>(), 2);
  const StageModel optional([](const at::Tensor& x) { return std::optional(x); });
  EXPECT_EQ(optional.forward({kOne}).size(), 1U);
}

struct TwoInputsImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor x, std::optional<at::Tensor> y) { return y ? x * *y : x; }
};
TORCH_MODULE(TwoInputs);

TEST(StageModel, IsMadeFromModules) {
  const torch::nn::Linear linear(3, 2);
  const StageModel holder(linear);
  EXPECT_EQ(holder.module, linear.ptr());
  EXPECT_EQ(holder.forward({torch::ones({4, 3})}).at(0).sizes(), (at::IntArrayRef{4, 2}));

  const StageModel pointer(std::make_shared<TwoInputsImpl>());
  EXPECT_EQ(pointer.forward({kOne * 2, kOne * 3}).at(0).item<float>(), 6);

  const StageModel sequential(torch::nn::Sequential(torch::nn::Linear(3, 2), torch::nn::ReLU()));
  EXPECT_EQ(sequential.forward({torch::ones({4, 3})}).at(0).sizes(), (at::IntArrayRef{4, 2}));
  EXPECT_EQ(sequential.module->parameters().size(), 2U);
}

TEST(StageModel, OwnsTheModuleWhoseFunctionItCalls) {
  std::weak_ptr<torch::nn::LinearImpl> gone;
  {
    auto module = std::make_shared<torch::nn::LinearImpl>(3, 2);
    gone = module;
    const StageModel stage(std::move(module));
    EXPECT_FALSE(gone.expired());
    EXPECT_EQ(stage.forward({torch::ones({1, 3})}).size(), 1U);
  }
  EXPECT_TRUE(gone.expired());
}

TEST(StageModel, RefusesAnotherNumberOfValues) {
  const StageModel stage([](const at::Tensor& x, const at::Tensor& y) { return x + y; });
  EXPECT_THROW(stage.forward({kOne}), ArgumentError);
  EXPECT_THROW(stage.forward({kOne, kOne, kOne}), ArgumentError);
}

TEST(SeededGenerator, DependsOnEveryNumberOfItsKeyAlone) {
  const auto draw = [](std::initializer_list<std::uint64_t> key) {
    return torch::rand({4}, seeded_generator(key));
  };
  EXPECT_TRUE(draw({1, 2, 3}).equal(draw({1, 2, 3})));
  torch::manual_seed(5);
  EXPECT_TRUE(draw({1, 2, 3}).equal(draw({1, 2, 3})));
  for (const auto& other : {draw({1, 2, 4}), draw({2, 2, 3}), draw({1, 3, 3}), draw({1, 2}), draw({3, 2, 1}),
                            draw({1, 2, 3, 0}), draw({})}) {
    EXPECT_FALSE(draw({1, 2, 3}).equal(other));
  }
}

TEST(CurrentAction, IsNoneOutsideOfPipelines) { EXPECT_FALSE(current_action().has_value()); }

}  // namespace
}  // namespace pipewright
