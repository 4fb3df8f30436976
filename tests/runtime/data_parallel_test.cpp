// Pipelines in several replicas, in one process and in worlds of several: losses and gradients as
// those of the unsplit model over the data of all replicas.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "pipewright/schedule/csv.h"
#include "pipewright/schedule/lower.h"
#include "runtime/compare.h"
#include "runtime/faults.h"
#include "runtime/models.h"
#include "runtime/training_schedules.h"
#include "runtime/world/mesh.h"
#include "runtime/worlds.h"

namespace pipewright {
namespace {

/// Threads of this process alone, or so many worlds.
std::vector<std::string> in_processes(int count, const std::function<void(const WorldPtr&)>& part) {
  return count == 1 ? side_by_side({[&] { part(nullptr); }}) : in_worlds(count, part);
}

struct Spread {
  int replicas = 2;
  int processes = 1;
  bool sharded = false;
};
std::string to_text(const Spread& spread) {
  return std::to_string(spread.replicas) + (spread.sharded ? " sharded" : " replicated") + " in " +
         std::to_string(spread.processes) + " processes";
}

PipelineOptions options_for(const Model& model, const Spread& spread, const WorldPtr& world) {
  PipelineOptions options = options_for(model);
  options.world = world;
  options.data_parallel = spread.replicas;
  options.sharded = spread.sharded;
  return options;
}

Pipeline make_replicas(const Model& model, const Schedule& schedule, const Spread& spread,
                       const WorldPtr& world) {
  return {schedule, cut(model, schedule.stage_count()), options_for(model, spread, world)};
}

/// This process's part of the data of all replicas.
Batch part_of(const std::vector<MicrobatchValues>& data, const Pipeline& pipeline) {
  const auto each = static_cast<std::ptrdiff_t>(pipeline.plan().microbatches);
  Batch batch;
  for (const int replica : pipeline.replicas()) {
    const auto first = data.begin() + replica * each;
    batch.microbatches.insert(batch.microbatches.end(), first, first + each);
  }
  return batch;
}

/// The part of a whole tensor that a local parameter stands for.
at::Tensor part_of(const at::Tensor& whole, const LocalParameter& parameter) {
  if (!whole.defined()) return whole;
  return whole.detach()
      .reshape({-1})
      .narrow(0, parameter.offset, parameter.tensor.numel())
      .view(parameter.tensor.sizes());
}

/// Counts the elements that all processes have, each once, by parameter.
class Coverage {
 public:
  void add(const std::vector<LocalParameter>& parameters) {
    const std::lock_guard lock(mutex_);
    for (const LocalParameter& each : parameters) {
      if (each.counts) elements_[each.name] += each.tensor.numel();
    }
  }
  void expect_all_of(Unsplit& unsplit) const {
    for (const auto& item : unsplit.module().named_parameters()) {
      const auto found = elements_.find(item.key());
      ASSERT_NE(found, elements_.end()) << item.key() << " is nowhere";
      EXPECT_EQ(found->second, item.value().numel()) << item.key();
    }
    EXPECT_EQ(elements_.size(), unsplit.module().named_parameters().size());
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::int64_t> elements_;
};

void expect_gradient_parts(const Pipeline& pipeline, const Gradients& expected) {
  for (const LocalParameter& each : pipeline.local_parameters()) {
    EXPECT_TRUE(close(each.tensor.grad(), part_of(expected.at(each.name), each)))
        << "gradient of " << each.name;
  }
}

void expect_parity(const Model& model, const Schedule& schedule, const Spread& spread) {
  SCOPED_TRACE(to_text(spread));
  const auto data = model.data(schedule.microbatches * spread.replicas);
  Unsplit unsplit(model);
  const auto expected = unsplit.run(data);
  const Gradients gradients = unsplit.gradients();
  Coverage coverage;
  expect_no_errors(in_processes(spread.processes, [&](const WorldPtr& world) {
    Pipeline pipeline = make_replicas(model, schedule, spread, world);
    expect_losses(pipeline.step(part_of(data, pipeline)), expected);
    expect_gradient_parts(pipeline, gradients);
    coverage.add(pipeline.local_parameters());
  }));
  coverage.expect_all_of(unsplit);
}

class WorldReplicas : public testing::TestWithParam<ScheduleInfo> {};
INSTANTIATE_TEST_SUITE_P(Every, WorldReplicas, testing::ValuesIn(training_schedules()), schedule_test_name);

TEST_P(WorldReplicas, HaveTheGradientsOfAllTheirData) {
  const Schedule schedule = make_schedule(GetParam(), 2, 3);
  for (const Spread& spread : {Spread{2, 1, false}, Spread{2, 1, true}, Spread{2, 2, false},
                               Spread{2, 2, true}, Spread{2, 4, false}, Spread{2, 4, true}}) {
    expect_parity(mlp(), schedule, spread);
  }
}

class WorldReplicatedModel : public testing::TestWithParam<Model> {};
INSTANTIATE_TEST_SUITE_P(Every, WorldReplicatedModel, testing::ValuesIn(every_model()),
                         [](const auto& parameter) { return parameter.param.name; });

TEST_P(WorldReplicatedModel, HasTheGradientsOfAllItsData) {
  for (const char* name : {"1F1B", "ZBVZeroBubble"}) {
    SCOPED_TRACE(name);
    const Schedule schedule = make_schedule({.name = name, .ranks = 2, .microbatches = 2});
    for (const Spread& spread : {Spread{3, 1, false}, Spread{2, 4, false}, Spread{2, 4, true}}) {
      expect_parity(GetParam(), schedule, spread);
    }
  }
}

/// Threads and remote replicas of one rank at once, in numbers that differ from process to process, and
/// parameters that come and go several times in a step.
TEST(WorldMixedReplicas, HaveTheGradientsOfAllTheirData) {
  const Model model = mlp();
  const Schedule schedule =
      lower(make_schedule({.name = "Interleaved1F1B", .ranks = 2, .microbatches = 4, .stages_per_rank = 4}),
            {.max_active_stages = 1});
  const auto data = model.data(4 * 3);
  Unsplit unsplit(model);
  const auto expected = unsplit.run(data);
  const Gradients gradients = unsplit.gradients();
  for (const bool sharded : {false, true}) {
    SCOPED_TRACE(sharded);
    Coverage coverage;
    expect_no_errors(in_worlds(3, [&](const WorldPtr& world) {
      PipelineOptions options = options_for(model, {.replicas = 3, .sharded = sharded}, world);
      options.processes = {0, 0, 1, 2, 1, 2};
      Pipeline pipeline(schedule, cut(model, schedule.stage_count()), options);
      for (int step = 0; step < 3; ++step) {
        pipeline.zero_grad();
        expect_losses(pipeline.step(part_of(data, pipeline)), expected);
        expect_gradient_parts(pipeline, gradients);
      }
      coverage.add(pipeline.local_parameters());
    }));
    coverage.expect_all_of(unsplit);
  }
}

const std::vector<Spread> kSpreads = {{2, 1, false}, {2, 2, true}, {2, 4, false}, {2, 4, true}};

TEST(WorldDataParallel, FollowsTheUnsplitModelOverSeveralSteps) {
  const Model model = gpt();
  const Schedule schedule = make_schedule({.name = "Interleaved1F1B", .ranks = 2, .microbatches = 2});
  const auto data = model.data(4);
  constexpr int kSteps = 4;
  Unsplit unsplit(model);
  // Not Adam: it makes steps of full size out of gradients that are only rounding.
  const auto sgd = torch::optim::SGDOptions(0.1).momentum(0.9);
  torch::optim::SGD optimizer(unsplit.module().parameters(), sgd);
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    losses.push_back(unsplit.run(data).loss.item<double>());
    // Tied parameters have the sum of their gradients, and stay alike.
    const Gradients gradients = unsplit.gradients();
    for (const auto& item : unsplit.module().named_parameters()) {
      item.value().mutable_grad() = gradients.at(item.key()).clone();
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  EXPECT_LT(losses.back(), losses.front());

  for (const Spread& spread : kSpreads) {
    SCOPED_TRACE(to_text(spread));
    expect_no_errors(in_processes(spread.processes, [&](const WorldPtr& world) {
      Pipeline pipeline = make_replicas(model, schedule, spread, world);
      torch::optim::SGD own(pipeline.parameters(), sgd);
      for (int step = 0; step < kSteps; ++step) {
        const StepResult result = pipeline.step(part_of(data, pipeline));
        EXPECT_NEAR(result.loss.item<double>(), losses[static_cast<std::size_t>(step)], 1e-4);
        own.step();
        own.zero_grad();
      }
      const auto parameters = unsplit.module().named_parameters();
      for (const auto& [name, value] : pipeline.state_dict()) {
        EXPECT_TRUE(torch::allclose(value, parameters[name], 1e-3, 1e-4)) << name;
      }
    }));
  }
}

TEST(WorldDataParallel, AddsUpGradientsOverSteps) {
  const Model model = gpt();
  const Schedule schedule = make_schedule({.name = "ZBVZeroBubble", .ranks = 2, .microbatches = 3});
  const auto data = model.data(6);
  Unsplit unsplit(model);
  unsplit.run(data);
  unsplit.run(data);
  const Gradients gradients = unsplit.gradients();
  for (const Spread& spread : kSpreads) {
    SCOPED_TRACE(to_text(spread));
    expect_no_errors(in_processes(spread.processes, [&](const WorldPtr& world) {
      Pipeline pipeline = make_replicas(model, schedule, spread, world);
      pipeline.step(part_of(data, pipeline));
      pipeline.eval(part_of(data, pipeline));  // leaves them as they are
      pipeline.step(part_of(data, pipeline));
      expect_gradient_parts(pipeline, gradients);
    }));
  }
}

TEST(WorldDataParallel, CountsEveryElementOnceInNormsAndClipping) {
  const Model model = gpt();
  const Schedule schedule = make_schedule({.name = "1F1B", .ranks = 2, .microbatches = 2});
  const auto data = model.data(4);
  Unsplit unsplit(model);
  unsplit.run(data);
  Gradients gradients = unsplit.gradients();
  std::set<std::string> copies;
  for (const auto& group : model.tied) copies.insert(group.begin() + 1, group.end());
  for (const double p : {1.0, 2.0, std::numeric_limits<double>::infinity()}) {
    std::vector<at::Tensor> flat;
    for (const auto& [name, gradient] : gradients) {
      if (!copies.contains(name)) flat.push_back(gradient.reshape({-1}));
    }
    const double norm = torch::linalg_vector_norm(torch::cat(flat), p).item<double>();
    for (const Spread& spread : kSpreads) {
      SCOPED_TRACE(to_text(spread));
      expect_no_errors(in_processes(spread.processes, [&](const WorldPtr& world) {
        Pipeline pipeline = make_replicas(model, schedule, spread, world);
        pipeline.step(part_of(data, pipeline));
        EXPECT_NEAR(pipeline.grad_norm(p).item<double>(), norm, 1e-4 * norm);
        pipeline.clip_grad_norm(norm / 4, p);
        EXPECT_NEAR(pipeline.grad_norm(p).item<double>(), norm / 4, 1e-4 * norm);
      }));
    }
  }
}

TEST(WorldDataParallel, StartsFromTheFirstReplica) {
  for (const Spread& spread : kSpreads) {
    SCOPED_TRACE(to_text(spread));
    std::atomic<int> built = 0;
    std::mutex mutex;
    std::map<std::string, at::Tensor> first;
    expect_no_errors(in_processes(spread.processes, [&](const WorldPtr& world) {
      // Every module that is built has other values.
      const auto build = [&](Stage) {
        auto linear = torch::nn::Linear(3, 3);
        linear->register_buffer("level", torch::zeros({2}));
        const torch::NoGradGuard no_grad;
        for (at::Tensor& each : linear->parameters()) each.fill_(++built);
        for (at::Tensor& each : linear->buffers()) each.fill_(++built);
        return StageModel(linear);
      };
      PipelineOptions options{.timeout = std::chrono::seconds(30), .world = world};
      options.data_parallel = spread.replicas;
      options.sharded = spread.sharded;
      const Pipeline pipeline(make_schedule({.name = "1F1B", .ranks = 2, .microbatches = 2}), build, options);
      const Pipeline::StateDict state = pipeline.state_dict();
      const std::lock_guard lock(mutex);
      for (const auto& [name, value] : state) {
        const auto [known, is_new] = first.emplace(name, value);
        EXPECT_TRUE(is_new || torch::equal(known->second, value)) << name;
        EXPECT_TRUE((value == value.flatten()[0]).all().item<bool>()) << name << " is mixed from several";
      }
    }));
    EXPECT_EQ(first.size(), 6U);
  }
}

TEST(WorldDataParallel, SavesAndLoadsWholeParameters) {
  const Model model = gpt();
  const Schedule schedule = make_schedule({.name = "Interleaved1F1B", .ranks = 2, .microbatches = 2});
  Unsplit unsplit(model);
  Pipeline::StateDict state;
  for (const auto& item : unsplit.module().named_parameters()) {
    state[item.key()] = item.value().detach() * 2 + 1;
  }
  for (const Spread& spread : kSpreads) {
    SCOPED_TRACE(to_text(spread));
    expect_no_errors(in_processes(spread.processes, [&](const WorldPtr& world) {
      Pipeline pipeline = make_replicas(model, schedule, spread, world);
      pipeline.load_state_dict(state);
      for (const auto& [name, value] : pipeline.state_dict()) {
        EXPECT_TRUE(torch::equal(value, state.at(name))) << name;
      }
      Pipeline::StateDict wrong = state;
      wrong["l0.nothing"] = torch::zeros({1});
      EXPECT_THROW(pipeline.load_state_dict(wrong), ArgumentError);
    }));
  }
}

TEST(WorldDataParallel, MergesTheOutputsOfAllReplicas) {
  const Model model = mlp();
  const Schedule schedule = make_schedule({.name = "1F1B", .ranks = 2, .microbatches = 3});
  const auto data = model.data(6);
  Unsplit unsplit(model);
  const auto expected = unsplit.run(data);
  std::vector<at::Tensor> outputs;
  for (const Values& each : expected.outputs) outputs.push_back(each.at(0).detach());
  for (const Spread& spread : kSpreads) {
    SCOPED_TRACE(to_text(spread));
    std::mutex mutex;
    std::map<Microbatch, at::Tensor> handed;
    expect_no_errors(in_processes(spread.processes, [&](const WorldPtr& world) {
      Pipeline pipeline = make_replicas(model, schedule, spread, world);
      const StepResult result = pipeline.eval(part_of(data, pipeline));
      expect_losses(result, expected);
      EXPECT_TRUE(close(result.outputs.at(0), torch::cat(outputs)));
      EXPECT_TRUE(close(pipeline.step(part_of(data, pipeline), {.outputs = true}).outputs.at(0),
                        torch::cat(outputs)));
      pipeline.infer(part_of(data, pipeline), [&](Microbatch microbatch, const Values& values) {
        const std::lock_guard lock(mutex);
        EXPECT_TRUE(handed.emplace(microbatch, values.at(0)).second);
      });
    }));
    ASSERT_EQ(handed.size(), outputs.size());
    for (const auto& [microbatch, output] : handed) {
      EXPECT_TRUE(close(output, outputs[static_cast<std::size_t>(microbatch)]));
    }
  }
}

TEST(WorldDataParallel, LeavesParametersWithoutGradientAlone) {
  // The first parameter is used by nobody, the second only by the first replica's first microbatch.
  struct Picky : torch::nn::Module {
    Picky() {
      unused = register_parameter("unused", torch::ones({2}));
      once = register_parameter("once", torch::ones({2}));
      always = register_parameter("always", torch::ones({2}));
    }
    at::Tensor forward(const at::Tensor& x) {
      const at::Tensor y = x * always;
      return microbatch_now() == 0 ? y * once : y;
    }
    at::Tensor unused, once, always;
  };
  for (const Spread& spread : kSpreads) {
    SCOPED_TRACE(to_text(spread));
    expect_no_errors(in_processes(spread.processes, [&](const WorldPtr& world) {
      PipelineOptions options{.loss = [](const Values& outputs, const Values&) { return outputs[0].sum(); },
                              .timeout = std::chrono::seconds(30),
                              .world = world};
      options.data_parallel = spread.replicas;
      options.sharded = spread.sharded;
      Pipeline pipeline(
          make_schedule({.name = "GPipe", .ranks = 2, .microbatches = 1}),
          [](Stage) { return StageModel(std::make_shared<Picky>()); }, options);
      Batch batch;
      batch.microbatches.resize(pipeline.replicas().size(), {{torch::ones({2})}, {}, {}});
      pipeline.step(batch);
      for (const LocalParameter& each : pipeline.local_parameters()) {
        const at::Tensor grad = each.tensor.grad();
        EXPECT_EQ(grad.defined(), !each.name.ends_with("unused")) << each.name;
        if (each.name.ends_with("once")) {
          EXPECT_TRUE(torch::allclose(grad, torch::full_like(grad, 0.5))) << grad;
        }
      }
    }));
  }
}

/// A replica gets to its REDUCE_GRAD while the other has not begun.
TEST(WorldDataParallel, ExchangesNothingBeforeReduceGrad) {
  const Model model = mlp();
  const Schedule schedule = make_schedule({.name = "Interleaved1F1B", .ranks = 1, .microbatches = 3});
  const auto data = model.data(6);
  std::atomic<int> reduced = 0;
  expect_no_errors(in_worlds(2, [&](const WorldPtr& world) {
    Pipeline pipeline = make_replicas(model, schedule, {.replicas = 2}, world);
    if (world->rank() == 0) {
      pipeline.set_handler(Kind::F, [&](const ActionContext& context) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (reduced == 0 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
        EXPECT_GT(reduced, 0);
        context.run();
      });
    } else {
      pipeline.set_handler(Kind::ReduceGrad, [&](const ActionContext& context) {
        context.run();
        ++reduced;
      });
    }
    pipeline.step(part_of(data, pipeline));
  }));
}

TEST(WorldDataParallel, SumsNarrowGradientsInAWiderType) {
  struct Narrow : torch::nn::Module {
    Narrow() {
      weight = register_parameter("weight", (numbers(7, {16, 16}) * 0.2).to(at::kBFloat16));
      bias = register_parameter("bias", numbers(8, {16}));  // one of another type
    }
    at::Tensor forward(const at::Tensor& x) { return torch::tanh(x.matmul(weight) + bias.to(x.dtype())); }
    at::Tensor weight, bias;
  };
  const auto loss = [](const Values& outputs, const Values&) {
    return outputs[0].to(at::kFloat).square().sum();
  };
  const std::vector<at::Tensor> inputs = {numbers(1, {4, 16}).to(at::kBFloat16),
                                          numbers(2, {4, 16}).to(at::kBFloat16)};
  // Each replica's own gradients are rounded; their sum is not.
  at::Tensor weight;
  at::Tensor bias;
  for (const at::Tensor& input : inputs) {
    Narrow module;
    loss({module.forward(input)}, {}).mul(0.5).backward();
    const at::Tensor own = module.weight.grad().to(at::kFloat);
    weight = weight.defined() ? weight + own : own;
    bias = bias.defined() ? bias + module.bias.grad() : module.bias.grad();
  }
  ASSERT_FALSE(torch::equal(weight, weight.to(at::kBFloat16).to(at::kFloat)));

  for (const Spread& spread : {Spread{2, 1, false}, Spread{2, 2, false}, Spread{2, 2, true}}) {
    SCOPED_TRACE(to_text(spread));
    expect_no_errors(in_processes(spread.processes, [&](const WorldPtr& world) {
      PipelineOptions options{.loss = loss, .timeout = std::chrono::seconds(30), .world = world};
      options.data_parallel = spread.replicas;
      options.sharded = spread.sharded;
      options.reduce_dtype = at::kFloat;
      Pipeline pipeline(
          make_schedule({.name = "GPipe", .ranks = 1, .microbatches = 1}),
          [](Stage) { return StageModel(std::make_shared<Narrow>()); }, options);
      Batch batch;
      for (const int replica : pipeline.replicas()) {
        batch.microbatches.push_back({{inputs[static_cast<std::size_t>(replica)]}, {}, {}});
      }
      pipeline.step(batch);
      for (const LocalParameter& each : pipeline.local_parameters()) {
        const bool narrow = each.name.ends_with("weight");
        // Shards are kept in the type of the reduction, other parameters are what they were.
        EXPECT_EQ(each.tensor.scalar_type(), narrow && !spread.sharded ? at::kBFloat16 : at::kFloat);
        const at::Tensor expected = part_of(narrow ? weight : bias, each).to(each.tensor.scalar_type());
        EXPECT_TRUE(torch::equal(each.tensor.grad(), expected)) << each.name;
      }
    }));
  }
}

/// Bytes of a module's parameters that are in memory.
std::size_t resident_bytes(const StageModel& model) {
  std::set<const void*> seen;
  std::size_t bytes = 0;
  for (const at::Tensor& parameter : model.module->parameters()) {
    if (seen.insert(parameter.storage().unsafeGetStorageImpl()).second) bytes += parameter.storage().nbytes();
  }
  return bytes;
}

TEST(WorldSharded, ParametersAreInMemoryAsThePlanSays) {
  constexpr std::int64_t kWidth = 64;
  constexpr std::size_t kStageBytes = kWidth * kWidth * sizeof(float);
  for (const int active : {1, 2, 3}) {
    SCOPED_TRACE(std::to_string(active) + " active stages");
    const Schedule plan =
        lower(make_schedule({.name = "Interleaved1F1B", .ranks = 2, .microbatches = 4, .stages_per_rank = 4}),
              {.max_active_stages = active});
    for (const int replicas : {2, 3}) {
      expect_no_errors(in_worlds(2 * replicas, [&](const WorldPtr& world) {
        PipelineOptions options{.loss = squared_error, .timeout = std::chrono::seconds(30), .world = world};
        options.data_parallel = replicas;
        options.sharded = true;
        Pipeline pipeline(
            plan,
            [=](Stage) {
              return StageModel(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
            },
            options);
        const auto rank = static_cast<std::size_t>(world->rank() / replicas);
        std::vector<Stage> stages;
        for (Stage stage = 0; stage < plan.stage_count(); ++stage) {
          if (plan.placement[static_cast<std::size_t>(stage)] == static_cast<Rank>(rank))
            stages.push_back(stage);
        }
        const auto resident = [&] {
          std::size_t bytes = 0;
          for (const Stage stage : stages) bytes += resident_bytes(pipeline.stage(stage));
          return bytes;
        };
        std::size_t shards = 0;
        for (const at::Tensor& each : pipeline.parameters()) shards += each.nbytes();
        EXPECT_NEAR(static_cast<double>(shards), 4.0 * kStageBytes / replicas, 16.0 * replicas);
        EXPECT_EQ(resident(), 0U);

        // As many stages as the plan has unsharded there, at every compute action.
        std::vector<std::size_t> measured;
        for (const Kind kind : {Kind::F, Kind::B}) {
          pipeline.set_handler(kind, [&](const ActionContext& context) {
            context.run();
            measured.push_back(resident());
          });
        }
        std::vector<std::size_t> predicted;
        std::size_t unsharded = 0;
        std::size_t most = 0;
        for (const Action action : plan.ranks[rank]) {
          if (action.kind == Kind::Unshard) ++unsharded;
          if (action.kind == Kind::Reshard) --unsharded;
          most = std::max(most, unsharded);
          if (is_compute(action.kind)) predicted.push_back(unsharded);
        }
        EXPECT_EQ(most, static_cast<std::size_t>(active));
        Batch batch;
        batch.microbatches.resize(4, {{torch::ones({2, kWidth})}, {torch::zeros({2, kWidth})}, {}});
        pipeline.step(batch);
        ASSERT_EQ(measured.size(), predicted.size());
        for (std::size_t at = 0; at < measured.size(); ++at) {
          EXPECT_NEAR(static_cast<double>(measured[at]), static_cast<double>(predicted[at] * kStageBytes),
                      64.0 * replicas);
        }
        EXPECT_EQ(resident(), 0U);
      }));
    }
  }
}

TEST(WorldDataParallel, FailsInEveryProcessWithTheReplicaThatFailed) {
  for (const bool sharded : {false, true}) {
    SCOPED_TRACE(sharded);
    const Schedule schedule = make_schedule({.name = "1F1B", .ranks = 2, .microbatches = 3});
    expect_everywhere(
        in_worlds(4,
                  [&](const WorldPtr& world) {
                    Pipeline pipeline = make_replicas(mlp(), schedule, {.sharded = sharded}, world);
                    if (world->rank() == 3) {
                      pipeline.set_handler(Kind::B,
                                           [](const ActionContext&) { throw std::runtime_error("no more"); });
                    }
                    pipeline.step(part_of(mlp().data(6), pipeline));
                  }),
        "replica 1, rank 1, 1B0 (stage 1): no more");
  }
}

TEST(WorldDataParallel, SaysThatASumDidNotComeAbout) {
  const Schedule schedule = make_schedule({.name = "1F1B", .ranks = 1, .microbatches = 2});
  const auto errors = in_worlds(2, [&](const WorldPtr& world) {
    PipelineOptions options = options_for(mlp(), {}, world);
    options.timeout = std::chrono::seconds(1);
    Pipeline pipeline(schedule, cut(mlp(), 1), options);
    if (world->rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(3));
    pipeline.step(part_of(mlp().data(4), pipeline));
  });
  expect_everywhere(
      errors,
      "replica 0, rank 0, 0REDUCE_GRAD (stage 0): the sum of the gradients of stage 0 did not come "
      "about within 1000 ms among processes 0, 1");
}

TEST(DataParallel, GoesOnAfterAFailureInOneProcess) {
  const Model model = mlp();
  const Schedule schedule = make_schedule({.name = "ZBH1", .ranks = 2, .microbatches = 3});
  const auto data = model.data(6);
  Unsplit unsplit(model);
  unsplit.run(data);
  Pipeline pipeline = make_replicas(model, schedule, {.replicas = 2}, nullptr);
  pipeline.set_handler(Kind::W, [](const ActionContext& context) {
    if (context.replica == 1) throw std::runtime_error("no more");
    context.run();
  });
  try {
    pipeline.step(part_of(data, pipeline));
    FAIL() << "the step succeeded";
  } catch (const StepError& error) {
    EXPECT_EQ(error.replica, 1);
    EXPECT_NE(std::string(error.what()).find("replica 1, rank "), std::string::npos) << error.what();
  }
  pipeline.set_handler(Kind::W, {});
  pipeline.zero_grad();
  pipeline.step(part_of(data, pipeline));
  expect_gradient_parts(pipeline, unsplit.gradients());
}

TEST(DataParallel, RefusesWhatCannotBeReplicated) {
  const Schedule schedule = make_schedule({.name = "Interleaved1F1B", .ranks = 1, .microbatches = 2});
  const auto message_of = [&](const Schedule& plan, const StageFactory& build, int replicas) -> std::string {
    try {
      const Pipeline pipeline(plan, build, {.data_parallel = replicas});
    } catch (const ArgumentError& error) {
      return error.what();
    }
    return "nothing";
  };
  const StageFactory fine = [](Stage) { return StageModel(torch::nn::Linear(2, 2)); };
  EXPECT_EQ(message_of(schedule, fine, 2), "nothing");
  EXPECT_EQ(message_of(schedule, fine, 0), "there must be at least 1 replica, not 0");

  std::map<int, torch::nn::Linear> shared;
  int built = 0;
  const StageFactory sharing = [&](Stage) {
    return StageModel(shared.try_emplace(built++ / 2, torch::nn::Linear(2, 2)).first->second);
  };
  EXPECT_NE(message_of(schedule, sharing, 2).find("stage 0 and stage 1 share a parameter"),
            std::string::npos);

  const StageFactory growing = [&](Stage) { return StageModel(torch::nn::Linear(2, ++built)); };
  EXPECT_NE(message_of(schedule, growing, 2).find("the replicas of stage 0 are not alike"),
            std::string::npos);

  Schedule bare = lower(schedule);
  for (auto& actions : bare.ranks) {
    std::erase_if(actions, [](Action action) { return action.kind == Kind::ReduceGrad; });
  }
  EXPECT_NE(message_of(bare, fine, 2).find("REDUCE_GRAD"), std::string::npos);
}

TEST(WorldDataParallel, RefusesReplicasThatDiffer) {
  expect_everywhere(in_worlds(2,
                              [&](const WorldPtr& world) {
                                const std::int64_t width = 2 + world->rank();
                                const Pipeline pipeline(
                                    make_schedule({.name = "1F1B", .ranks = 1, .microbatches = 2}),
                                    [&](Stage) { return StageModel(torch::nn::Linear(width, width)); },
                                    {.world = world, .data_parallel = 2});
                              }),
                    "the replicas of stage 0 differ");
  expect_everywhere(in_worlds(2,
                              [&](const WorldPtr& world) {
                                const Pipeline pipeline(
                                    make_schedule({.name = "1F1B", .ranks = 1, .microbatches = 2}),
                                    [&](Stage) { return StageModel(torch::nn::Linear(2, 2)); },
                                    {.world = world, .data_parallel = 2, .sharded = world->rank() == 1});
                              }),
                    "do not agree on the sharding of parameters");
}

TEST(Mesh, PlacesAllReplicasOfARankTogether) {
  const Mesh mesh(2, 3, 1, 3, {});
  EXPECT_EQ(mesh.processes(), (std::vector<int>{0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(mesh.process_of({.replica = 2, .rank = 0}), 1);
  EXPECT_EQ(mesh.local_replicas(), (std::vector<int>{0, 2}));
  EXPECT_EQ(mesh.local_replicas_of(1), std::vector<int>{0});
  EXPECT_EQ(mesh.processes_of(0), (std::vector<int>{0, 1}));
  EXPECT_THROW(Mesh(2, 2, 0, 3, {}), ArgumentError);
  EXPECT_THROW(Mesh(2, 2, 0, 2, {0, 1}), ArgumentError);
  EXPECT_THROW(Mesh(1, 2, 0, 2, {0, 2}), ArgumentError);
}

}  // namespace
}  // namespace pipewright
