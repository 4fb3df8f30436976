// What data parallelism does over NCCL, among one process; and messages, where these tests run in several
// that have devices of their own, or that NCCL takes for different machines: NCCL_HOSTID=$RANK.

#include <gtest/gtest.h>

#include <cstdlib>

#include "pipewright/schedule/generate.h"
#include "runtime/collective/stage_replicas.h"
#include "runtime/compare.h"
#include "runtime/models.h"
#include "runtime/transport/c10d.h"
#include "runtime/world/nccl.h"
#include "runtime/world/world_impl.h"
#include "runtime/worlds.h"

namespace pipewright {
namespace {

class WorldNccl : public testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "there is no CUDA device";
    if (nccl_name({at::kCUDA, 0}).empty()) GTEST_SKIP() << "built without NCCL";
  }

  static std::unique_ptr<Collective> collective(World& world, const std::string& name) {
    return std::make_unique<Collective>(world, name, std::vector<int>{0}, c10::Device(at::kCUDA, 0),
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

TEST(NcclMessages, GoFromDeviceToDevice) {
  const std::shared_ptr<World> world = test_world();
  if (!world) GTEST_SKIP() << "it is for several processes";
  if (!torch::cuda::is_available()) GTEST_SKIP() << "there is no CUDA device";
  const Rank ranks = world->size();
  const Mesh mesh(ranks, 1, world->rank(), ranks, {});
  const Schedule plan =
      make_schedule({.name = "Interleaved1F1B", .ranks = ranks, .microbatches = ranks, .stages_per_rank = 2});
  const auto channels = [&](c10::Device device) {
    return open_carriers(*world, mesh, plan, {.known = {{{0, world->rank()}, device}}});
  };
  EXPECT_TRUE(channels(at::kCPU).empty());
  const c10::Device cuda(at::kCUDA, 0);
  Carriers carriers = channels(cuda);
  if (carriers.empty() && !std::getenv("NCCL_HOSTID")) {
    GTEST_SKIP() << "the processes have no CUDA devices of their own";
  }
  // Each rank has two stages; all have a stage before and one after, but for the first and the last.
  const bool is_end = world->rank() == 0 || world->rank() == ranks - 1;
  EXPECT_EQ(carriers.size(), is_end ? 6U : 8U);
  for (const auto& [edge, carrier] : carriers) EXPECT_EQ(carrier->getBackendName(), "nccl");

  const auto transport =
      make_c10d_transport(*world, mesh, plan, std::move(carriers), std::chrono::seconds(60));
  const auto channel = [&](Stage from, Stage to) {
    return transport->connect({.from = from,
                               .to = to,
                               .from_rank = plan.placement.at(static_cast<std::size_t>(from)),
                               .to_rank = plan.placement.at(static_cast<std::size_t>(to)),
                               .replica = 0,
                               .from_device = cuda,
                               .to_device = cuda});
  };
  const Stage next = world->rank() + 1;
  for (int step = 0; step < 3; ++step) {
    transport->begin_step(false);
    const at::Tensor sent = torch::arange(1 << 20, cuda).add(step).to(at::kFloat);
    const at::Tensor small = torch::full({3}, step, cuda);
    channel(next - 1, next)->send(0, {sent, at::Tensor(), small}, 0);
    if (world->rank() > 0) {
      channel(next - 2, next - 1)->post(0);
      const Values values = channel(next - 2, next - 1)->take(0).values;
      ASSERT_EQ(values.size(), 3U);
      EXPECT_EQ(values[0].device(), cuda);
      EXPECT_TRUE(torch::equal(values[0], sent));
      EXPECT_FALSE(values[1].defined());
      EXPECT_TRUE(torch::equal(values[2], small));
    } else {
      channel(ranks - 1, ranks)->post(0);
      EXPECT_TRUE(torch::equal(channel(ranks - 1, ranks)->take(0).values.at(0), sent));
    }
    EXPECT_FALSE(transport->end_step());
  }
}

}  // namespace
}  // namespace pipewright
