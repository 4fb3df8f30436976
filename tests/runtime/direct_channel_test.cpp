// Channels whose values are moved by a carrier. Here it is Gloo, between worlds of one process; NCCL moves
// those of all other tests where they run in processes with CUDA devices of their own.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "pipewright/runtime/errors.h"
#include "pipewright/schedule/generate.h"
#include "runtime/transport/c10d.h"
#include "runtime/world/world_impl.h"
#include "runtime/worlds.h"

namespace pipewright {
namespace {

using std::chrono::milliseconds;

/// A transport of two stages in two processes, with a carrier in each direction.
struct Direct {
  explicit Direct(const WorldPtr& the_world, milliseconds timeout = std::chrono::seconds(30))
      : world(the_world), mesh(2, 1, world->rank(), 2, {}) {
    const Schedule plan = make_schedule({.name = "GPipe", .ranks = 2, .microbatches = 4});
    Carriers carriers = {{{0, 0, 1}, open_carrier(*world, "forth", 0, 1, at::kCPU)},
                         {{0, 1, 0}, open_carrier(*world, "back", 1, 0, at::kCPU)}};
    transport = make_c10d_transport(*world, mesh, plan, std::move(carriers), timeout);
    forth = transport->connect({.from = 0, .to = 1, .from_rank = 0, .to_rank = 1, .replica = 0});
    back = transport->connect({.from = 1, .to = 0, .from_rank = 1, .to_rank = 0, .replica = 0});
    transport->begin_step(false);
  }

  WorldPtr world;
  Mesh mesh;
  std::unique_ptr<Transport> transport;
  std::shared_ptr<Channel> forth;
  std::shared_ptr<Channel> back;
};

/// Messages of all kinds.
std::vector<Values> every_message() {
  const auto floats = [](at::IntArrayRef sizes) {
    return torch::arange(c10::multiply_integers(sizes), at::kFloat).view(sizes);
  };
  return {
      {floats({4, 16})},
      {},
      {floats({3, 5}), at::Tensor(), torch::arange(7), torch::tensor({true, false, true})},
      {floats({4, 16}).requires_grad_()},
      {floats({0, 3})},
      {floats({}).expand({0})},
      {floats({1}).expand({16}), floats({16, 1}).t()},
      {floats({6, 4}).t(), floats({}).to(at::kBFloat16), floats({2}).to(at::kHalf)},
      {torch::complex(floats({8}), floats({8}) + 1).conj()},
      {floats({1 << 20})},
      {floats({33})},
  };
}

TEST(WorldsDirect, ValuesOfAllKindsPassBothWays) {
  expect_no_errors(in_worlds(2, [](const WorldPtr& world) {
    Direct direct(world);
    const std::vector<Values> messages = every_message();
    const auto count = static_cast<Microbatch>(messages.size());
    Channel& out = world->rank() == 0 ? *direct.forth : *direct.back;
    Channel& in = world->rank() == 0 ? *direct.back : *direct.forth;
    for (int step = 0; step < 3; ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      if (step > 0) direct.transport->begin_step(false);
      for (Microbatch k = 0; k < count; ++k) out.send(k, messages[static_cast<std::size_t>(k)], 0);
      for (Microbatch k = 0; k < count; ++k) in.post(k);
      for (Microbatch k = 0; k < count; ++k) {
        SCOPED_TRACE("message " + std::to_string(k));
        const Values& expected = messages[static_cast<std::size_t>(k)];
        const Values values = in.take(k).values;
        ASSERT_EQ(values.size(), expected.size());
        for (std::size_t at = 0; at < values.size(); ++at) {
          ASSERT_EQ(values[at].defined(), expected[at].defined());
          if (!expected[at].defined()) continue;
          EXPECT_TRUE(torch::equal(values[at], expected[at]));
          EXPECT_EQ(values[at].scalar_type(), expected[at].scalar_type());
          EXPECT_EQ(values[at].requires_grad(), expected[at].requires_grad());
          EXPECT_FALSE(values[at].is_view());
        }
      }
      EXPECT_FALSE(direct.transport->end_step());
    }
  }));
}

TEST(WorldsDirect, ChannelsDoNotWaitForEachOther) {
  expect_no_errors(in_worlds(2, [](const WorldPtr& world) {
    Direct direct(world);
    const Values values = {torch::ones({1 << 16})};
    if (world->rank() == 0) {
      for (Microbatch k = 0; k < 4; ++k) direct.forth->send(k, values, 0);
      direct.back->post(0);
      direct.back->take(0);  // what comes only afterwards lets the first be taken
    } else {
      direct.back->send(0, values, 0);
      EXPECT_FALSE(direct.transport->end_step());
      for (Microbatch k = 0; k < 4; ++k) {
        direct.forth->post(k);
        EXPECT_TRUE(torch::equal(direct.forth->take(k).values.at(0), values[0]));
      }
    }
    EXPECT_FALSE(direct.transport->end_step());
  }));
}

TEST(WorldsDirect, WhatNobodySendsIsATimeout) {
  expect_no_errors(in_worlds(2, [](const WorldPtr& world) {
    Direct direct(world, milliseconds(200));
    if (world->rank() == 1) {
      direct.forth->post(2);
      try {
        direct.forth->take(2);
        ADD_FAILURE() << "nothing was sent";
      } catch (const TimeoutError& error) {
        EXPECT_STREQ(error.what(),
                     "no activations of stage 0 (rank 0) to stage 1 (rank 1) for microbatch 2 within 200 ms; "
                     "rank 0 in process 0 has not sent them");
      }
    }
    world->all_gather({});
  }));
}

TEST(WorldsDirect, WhatNobodyTakesIsNotDelivered) {
  expect_no_errors(in_worlds(2, [](const WorldPtr& world) {
    Direct direct(world, milliseconds(200));
    if (world->rank() == 0) {
      direct.forth->send(3, {torch::ones(8)}, 0);
      const std::optional<Undelivered> lost = direct.transport->end_step();
      ASSERT_TRUE(lost);
      EXPECT_EQ(lost->microbatch, 3);
      try {
        std::rethrow_exception(lost->cause);
      } catch (const TimeoutError& error) {
        EXPECT_STREQ(error.what(),
                     "rank 1 did not take the activations of stage 0 (rank 0) to stage 1 (rank 1) for "
                     "microbatch 3 within 200 ms");
      }
    }
    world->all_gather({});
  }));
}

TEST(WorldsDirect, MessagesInAnotherOrderAreRefused) {
  expect_no_errors(in_worlds(2, [](const WorldPtr& world) {
    Direct direct(world);
    if (world->rank() == 0) {
      direct.forth->send(1, {torch::ones(8)}, 0);
    } else {
      direct.forth->post(0);
      EXPECT_THROW(direct.forth->take(0), Error);
    }
    world->all_gather({});
  }));
}

TEST(WorldsDirect, SparseValuesAreRefused) {
  expect_no_errors(in_worlds(2, [](const WorldPtr& world) {
    Direct direct(world);
    if (world->rank() == 0) {
      EXPECT_THROW(direct.forth->send(0, {torch::eye(3).to_sparse()}, 0), Error);
      EXPECT_FALSE(direct.transport->end_step());
    }
    world->all_gather({});
  }));
}

TEST(WorldsDirect, WhatWasPostedAndNotTakenIsDropped) {
  expect_no_errors(in_worlds(2, [](const WorldPtr& world) {
    Direct direct(world);
    for (const double number : {1.0, 2.0}) {
      direct.transport->begin_step(false);
      if (world->rank() == 0) {
        for (Microbatch k = 0; k < 2; ++k) direct.forth->send(k, {torch::full({16}, number)}, 0);
        EXPECT_FALSE(direct.transport->end_step());
      } else {
        for (Microbatch k = 0; k < 2; ++k) direct.forth->post(k);
        EXPECT_EQ(direct.forth->take(0).values.at(0)[0].item<double>(), number);
        EXPECT_FALSE(direct.transport->end_step());
        direct.transport->reset();
      }
    }
  }));
}

TEST(WorldsDirect, AnAbortEndsEveryWait) {
  expect_no_errors(in_worlds(2, [](const WorldPtr& world) {
    Direct direct(world, std::chrono::minutes(5));
    // A message that nobody asks for, and one that nobody sends.
    Channel& out = world->rank() == 0 ? *direct.forth : *direct.back;
    Channel& in = world->rank() == 0 ? *direct.back : *direct.forth;
    if (world->rank() == 0) out.send(0, {torch::ones(8)}, 0);
    std::thread waits([&] {
      if (world->rank() == 0) in.post(0);
      EXPECT_THROW(in.take(0), Stopped);
    });
    std::this_thread::sleep_for(milliseconds(50));
    direct.transport->abort();
    waits.join();
    EXPECT_THROW(direct.transport->end_step(), Stopped);
    EXPECT_THROW(out.send(0, {}, 0), Stopped);
  }));
}

}  // namespace
}  // namespace pipewright
