// What data parallelism does over NCCL, among one process: all that a machine with one device can do.

#include <gtest/gtest.h>

#include "runtime/collective/stage_replicas.h"
#include "runtime/models.h"
#include "runtime/world/nccl.h"
#include "runtime/worlds.h"

namespace pipewright {
namespace {

class WorldNccl : public testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "there is no CUDA device";
    if (!has_nccl()) GTEST_SKIP() << "built without NCCL";
  }

  static std::unique_ptr<Collective> collective(World& world, const std::string& name) {
    return std::make_unique<Collective>(world, name, std::vector<int>{0}, at::kCUDA,
                                        std::chrono::seconds(60));
  }
};

TEST_F(WorldNccl, RunsEveryCollective) {
  expect_no_errors(in_worlds(1, [](const std::shared_ptr<World>& world) {
    const auto group = collective(*world, "every");
    const auto options = at::TensorOptions(at::kCUDA);
    const at::Tensor values = torch::arange(6, options.dtype(at::kFloat));
    const at::Tensor sum = values.clone();
    group->wait(group->all_reduce(sum, "sum"));
    EXPECT_TRUE(torch::equal(sum, values));
    const at::Tensor shared = values.clone();
    group->wait(group->broadcast(shared, "sharing"));
    EXPECT_TRUE(torch::equal(shared, values));
    const at::Tensor whole = torch::zeros(6, options);
    group->wait(group->all_gather(whole, values, "gathering"));
    EXPECT_TRUE(torch::equal(whole, values));
    at::Tensor part;
    group->wait(group->reduce_scatter(part, values.clone(), "sum"));
    EXPECT_TRUE(torch::equal(part, values));
    EXPECT_TRUE(part.is_cuda());
  }));
}

TEST_F(WorldNccl, GathersParametersAndSumsGradients) {
  expect_no_errors(in_worlds(1, [](const std::shared_ptr<World>& world) {
    ReplicaLinks links;
    links.gathers = collective(*world, "parameters");
    links.sums = collective(*world, "gradients");
    for (const bool sharded : {false, true}) {
      SCOPED_TRACE(sharded);
      torch::nn::Linear linear(64, 64);
      linear->to(at::kCUDA, at::kBFloat16);
      StageModel model(linear);
      const at::Tensor x = torch::randn({8, 64}, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
      linear->forward(x).sum().backward();
      const at::Tensor expected = linear->weight.grad().clone();
      linear->zero_grad();

      const auto make = sharded ? make_sharded_stage : make_replicated_stage;
      const auto stage = make({.stage = 0, .models = {&model}}, links, at::kFloat);
      for (int step = 1; step <= 3; ++step) {
        stage->begin_step();
        stage->unshard(0);
        stage->wait_for_parameters();
        linear->forward(x).sum().backward();
        stage->reduce_grad();
        stage->reshard(0);
        stage->end_step();
        EXPECT_EQ(linear->weight.storage().nbytes() == 0, sharded);
        for (const LocalParameter& each : stage->parameters()) {
          EXPECT_EQ(each.tensor.scalar_type(), sharded ? at::kFloat : at::kBFloat16);
          if (!each.name.ends_with("weight")) continue;
          const at::Tensor grad = each.tensor.grad().reshape(expected.sizes()).to(at::kFloat);
          EXPECT_TRUE(torch::allclose(grad, expected.to(at::kFloat) * step, 1e-2, 1e-3));
        }
      }
    }
  }));
}

}  // namespace
}  // namespace pipewright
