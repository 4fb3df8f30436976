#include "pipewright/frontend/sequential.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "pipewright/base/error.h"
#include "pipewright/runtime/pipeline.h"
#include "pipewright/schedule/generate.h"

namespace pipewright {
namespace {

torch::nn::Sequential make_layers() {
  torch::manual_seed(0);
  torch::nn::Sequential model;
  model->push_back("embed", torch::nn::Linear(6, 8));
  model->push_back("first", torch::nn::Functional(torch::relu));
  model->push_back("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
  model->push_back("head", torch::nn::Linear(8, 3));
  return model;
}

at::Tensor squares(const Values& outputs, const Values& targets) {
  return torch::mse_loss(outputs[0], targets[0]);
}

using Begins = std::vector<std::size_t>;

class SequentialStages : public testing::TestWithParam<Begins> {};

TEST_P(SequentialStages, HaveTheGradientsOfTheWhole) {
  torch::nn::Sequential whole = make_layers();
  const at::Tensor inputs = torch::randn({8, 6});
  const at::Tensor targets = torch::randn({8, 3});
  torch::mse_loss(whole->forward(inputs), targets).backward();

  const torch::nn::Sequential model = make_layers();
  const auto stages = static_cast<Rank>(GetParam().empty() ? model->size() : GetParam().size() + 1);
  Pipeline pipeline(make_schedule({.name = "1F1B", .ranks = stages, .microbatches = 4}),
                    sequential_stages(model, GetParam()), {.loss = squares});
  pipeline.step({inputs}, {targets});
  // The stages have the model's own parameters, under its own names.
  for (const auto& item : whole->named_parameters()) {
    const at::Tensor gradient = model->named_parameters()[item.key()].grad();
    ASSERT_TRUE(gradient.defined()) << item.key();
    EXPECT_TRUE(torch::allclose(gradient, item.value().grad(), 1e-5, 1e-6)) << item.key();
  }
  EXPECT_EQ(pipeline.state_dict().size(), whole->named_parameters().size());
  EXPECT_TRUE(pipeline.state_dict().contains("head.weight"));
}

INSTANTIATE_TEST_SUITE_P(Cuts, SequentialStages,
                         testing::Values(Begins{}, Begins{2}, Begins{1, 3}, Begins{1, 2, 3}));

TEST(SequentialReplicas, AreCopies) {
  const torch::nn::Sequential model = make_layers();
  const StageFactory build = sequential_stages(model, {2});
  const StageModel first = build(0);
  const StageModel again = build(0);
  EXPECT_TRUE(first.module->parameters()[0].is_same(model->parameters()[0]));
  EXPECT_FALSE(again.module->parameters()[0].is_same(model->parameters()[0]));
  EXPECT_TRUE(torch::equal(again.module->parameters()[0], model->parameters()[0]));
}

TEST(SequentialPlaces, ThatDoNotFitAreTold) {
  for (const Begins& begins : {Begins{0}, Begins{4}, Begins{2, 2}, Begins{3, 1}}) {
    EXPECT_THROW(sequential_stages(make_layers(), begins), ArgumentError);
  }
  EXPECT_THROW(sequential_stages(make_layers())(4), ArgumentError);
}

}  // namespace
}  // namespace pipewright
