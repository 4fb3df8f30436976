#include "pipewright/runtime/world.h"

#include <gtest/gtest.h>

#include <future>
#include <map>

#include "pipewright/schedule/csv.h"
#include "pipewright/schedule/generate.h"
#include "runtime/compare.h"
#include "runtime/faults.h"
#include "runtime/models.h"
#include "runtime/world/world_impl.h"
#include "runtime/worlds.h"

namespace pipewright {
namespace {

TEST(World, GathersWhatEveryProcessSays) {
  expect_no_errors(in_worlds(3, [](const auto& world) {
    const std::string own(static_cast<std::size_t>(world->rank()), 'x');
    EXPECT_EQ(world->all_gather(own), (std::vector<std::string>{"", "x", "xx"}));
  }));
}

/// What processes say that were started with these ranks and sizes.
std::vector<std::string> join_all(const std::vector<std::pair<int, int>>& ranks_and_sizes,
                                  std::chrono::milliseconds timeout) {
  const std::uint16_t port = free_port();
  std::vector<std::function<void()>> parts;
  for (const auto& [rank, size] : ranks_and_sizes) {
    parts.emplace_back([rank = rank, size = size, port, timeout] {
      const World world({.rank = rank, .size = size, .port = port, .timeout = timeout});
    });
  }
  return side_by_side(parts);
}

TEST(World, OfARankGivenTwiceIsRefusedEverywhere) {
  expect_everywhere(join_all({{0, 3}, {1, 3}, {1, 3}}, std::chrono::seconds(20)),
                    "rank 1 was given to 2 processes");
  expect_everywhere(join_all({{0, 2}, {0, 2}}, std::chrono::seconds(20)), "rank 0 was given to 2 processes");
}

TEST(World, OfDifferentSizesIsRefusedEverywhere) {
  expect_everywhere(join_all({{0, 2}, {1, 3}}, std::chrono::seconds(20)), "do not agree on the world's size");
}

TEST(World, SaysWhoDidNotCome) {
  expect_everywhere(join_all({{0, 3}}, std::chrono::seconds(1)), "did not come within 1000 ms: rank 1 2");
}

/// Environment variables for the time of a test; all others of launchers are taken away.
class Variables {
 public:
  explicit Variables(const std::map<std::string, std::string>& wanted) {
    for (const char* name :
         {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "OMPI_COMM_WORLD_RANK",
          "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID",
          "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_ID", "SLURM_LAUNCH_NODE_IPADDR",
          "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT"}) {
      if (const char* value = std::getenv(name)) before_[name] = value;
      unsetenv(name);
    }
    for (const auto& [name, value] : wanted) setenv(name.c_str(), value.c_str(), 1);
    wanted_ = wanted;
  }
  ~Variables() {
    for (const auto& [name, value] : wanted_) unsetenv(name.c_str());
    for (const auto& [name, value] : before_) setenv(name.c_str(), value.c_str(), 1);
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  std::map<std::string, std::string> before_;
  std::map<std::string, std::string> wanted_;
};

TEST(WorldFromEnvironment, IsNoneWithoutALauncher) {
  const Variables none({});
  EXPECT_FALSE(world_from_environment().has_value());
  // A batch script of Slurm is not yet a step of srun's.
  const Variables batch({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}});
  EXPECT_FALSE(world_from_environment().has_value());
}

TEST(WorldFromEnvironment, UnderstandsTorchrunMpirunAndSrun) {
  const std::map<std::string, std::string> place = {{"MASTER_ADDR", "10.0.0.7"}, {"MASTER_PORT", "1234"}};
  const std::vector<std::map<std::string, std::string>> launchers = {
      {{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}},
      {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}},
      {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}},
      {{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "1"}, {"SLURM_STEP_ID", "0"}}};
  for (std::map<std::string, std::string> variables : launchers) {
    SCOPED_TRACE(variables.begin()->first);
    variables.insert(place.begin(), place.end());
    const Variables set(variables);
    const auto options = world_from_environment();
    ASSERT_TRUE(options.has_value());
    EXPECT_EQ(options->rank, 2);
    EXPECT_EQ(options->size, 4);
    EXPECT_EQ(options->local_rank, 1);
    EXPECT_EQ(options->address, "10.0.0.7");
    EXPECT_EQ(options->port, 1234);
    EXPECT_FALSE(options->served_by_launcher);
  }
}

TEST(WorldFromEnvironment, KnowsThatTorchrunItselfListens) {
  const Variables set({{"RANK", "0"},
                       {"WORLD_SIZE", "1"},
                       {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                       {"TORCHELASTIC_RESTART_COUNT", "3"}});
  const auto options = world_from_environment();
  EXPECT_TRUE(options->served_by_launcher);
  EXPECT_EQ(options->attempt, "3");
}

TEST(WorldFromEnvironment, RefusesVariablesThatDoNotFitTogether) {
  const std::vector<std::map<std::string, std::string>> bad = {
      {{"RANK", "0"}},
      {{"WORLD_SIZE", "2"}},
      {{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}},
      {{"RANK", "-1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}},
      {{"RANK", "one"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}},
      {{"RANK", "1"}, {"WORLD_SIZE", "0"}, {"MASTER_ADDR", "h"}},
      {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "70000"}},
      {{"RANK", "1"}, {"WORLD_SIZE", "2"}}};
  for (const auto& variables : bad) {
    const Variables set(variables);
    EXPECT_THROW(world_from_environment(), ArgumentError) << testing::PrintToString(variables);
  }
}

PipelineOptions options_in(const std::shared_ptr<World>& world, const Model& model) {
  PipelineOptions options = options_for(model);
  options.world = world;
  return options;
}

Pipeline pipeline_in(const std::shared_ptr<World>& world, const Model& model, const Schedule& schedule) {
  return Pipeline(schedule, cut(model, schedule.stage_count()), options_in(world, model));
}

Schedule schedule_named(const char* name, Rank ranks, Microbatch microbatches) {
  return make_schedule({.name = name, .ranks = ranks, .microbatches = microbatches});
}

TEST(WorldsPlan, MustBeTheSameEverywhere) {
  const auto with = [](const Schedule& first, const Schedule& second) {
    return in_worlds(
        2, [&](const auto& world) { pipeline_in(world, mlp(), world->rank() == 0 ? first : second); });
  };
  const Schedule one = schedule_named("1F1B", 2, 3);
  expect_no_errors(with(one, one));
  expect_everywhere(with(one, schedule_named("1F1B", 2, 4)), "number of microbatches");
  expect_everywhere(with(one, schedule_named("1F1B", 4, 3)), "number of ranks");
  expect_everywhere(with(schedule_named("ZBVZeroBubble", 2, 3), schedule_named("Interleaved1F1B", 2, 3)),
                    "placement of stages on ranks");
  const std::vector<std::string> errors = with(one, schedule_named("GPipe", 2, 3));
  expect_everywhere(errors, "of rank 0: process 0 has");
  EXPECT_EQ(errors[0], errors[1]);
}

TEST(WorldsPlan, MustFitTheNumberOfProcesses) {
  expect_everywhere(
      in_worlds(2, [](const auto& world) { pipeline_in(world, mlp(), schedule_named("1F1B", 3, 3)); }),
      "a schedule of 3 ranks does not fit a world of 2 processes");
}

TEST(WorldsBoundaries, MustFitTogether) {
  const auto with = [](const Boundary& output, const Boundary& input) {
    return in_worlds(2, [&](const auto& world) {
      const auto build = [&](Stage stage) {
        StageModel made = cut(mlp(), 2)(stage);
        if (stage == 0) made.outputs = output;
        if (stage == 1) made.inputs = input;
        return made;
      };
      Pipeline(schedule_named("1F1B", 2, 3), build, options_in(world, mlp()));
    });
  };
  expect_no_errors(with({{.sizes = {-1, 4}}}, {{.sizes = {2, -1}}}));
  expect_everywhere(with({{.sizes = {-1, 4}}}, {{.sizes = {-1, 5}}}),
                    "stage 0 and stage 1 do not fit together: output 0 is float32[-1, 4], input 0 is "
                    "float32[-1, 5]");
  expect_everywhere(with({{.sizes = {4}}}, {{.sizes = {4}, .dtype = at::kHalf}}), "float16[4]");
  expect_everywhere(with({{.sizes = {4}}}, {}), "1 outputs, 0 inputs");
}

TEST(WorldsFailure, IsThatOfTheFirstEverywhereAndEndsTheWorld) {
  const Schedule schedule = schedule_named("1F1B", 4, 6);
  const std::vector<std::string> errors = in_worlds(2, [&](const auto& world) {
    const auto fault = std::make_shared<Fault>();
    const Model model = faulty_model(fault, 4);
    Pipeline pipeline = pipeline_in(world, model, schedule);
    pipeline.step(presplit(model.data(6)));
    fault->arm(Fault::Forward, 2, 3);
    const StepError error = failure_of(pipeline, model.data(6));
    EXPECT_EQ(error.rank, 2);
    EXPECT_EQ(to_text(error.action), "2F3");
    EXPECT_NE(std::string(error.what()).find("thrown in a forward"), std::string::npos) << error.what();
    pipeline.step(presplit(model.data(6)));
  });
  expect_everywhere(errors, "rank 2, 2F3 (stage 2): thrown in a forward");
  expect_everywhere(errors, "The world is over");
}

TEST(WorldsFailure, OfAProcessThatDoesNotStepIsATimeout) {
  const std::vector<std::string> errors = in_worlds(2, [&](const auto& world) {
    PipelineOptions options = options_in(world, mlp());
    options.timeout = std::chrono::milliseconds(500);
    Pipeline pipeline(schedule_named("1F1B", 2, 3), cut(mlp(), 2), options);
    if (world->rank() == 0) world->all_gather("waits, instead, for what the other does after its step");
    pipeline.step(presplit(mlp().data(3)));
  });
  expect_everywhere(
      errors,
      "no activations of stage 0 (rank 0) to stage 1 (rank 1) for microbatch 0 within 500 ms; rank 0 in "
      "process 0 has not sent them; process 0 (rank 0) waits for the meeting of all processes while others "
      "wait for it elsewhere");
}

TEST(WorldsFailure, OfAProcessThatLeavesIsNoticed) {
  const std::vector<std::string> errors = in_worlds(2, [&](const auto& world) {
    Pipeline pipeline = pipeline_in(world, mlp(), schedule_named("1F1B", 2, 3));
    if (world->rank() == 0) throw Thrown("this one goes");
    pipeline.step(presplit(mlp().data(3)));
  });
  EXPECT_EQ(errors[0], "this one goes");
  EXPECT_NE(errors[1].find("process 0 has left because of an error of its own"), std::string::npos)
      << errors[1];
}

/// The first operation of a group in which somebody does not come, as it is with NCCL: nothing ends it, but
/// the end of this object.
class Endless {
 public:
  ~Endless() { end_.set_value(); }
  FirstOperation operation() {
    return [ended = ended_](c10d::Backend&) -> c10::intrusive_ptr<c10d::Work> {
      ended.wait();
      throw Error("the end of the test");
    };
  }

 private:
  std::promise<void> end_;
  std::shared_future<void> ended_ = end_.get_future().share();
};

TEST(WorldsFailure, ToConnectForAGroupIsATimeout) {
  Endless endless;
  const auto connect = [&](const WorldPtr& world) {
    const World::Impl::Patience patience(world.get(), std::chrono::milliseconds(500));
    world->impl().group("sums", {0, 1}, at::kCPU, endless.operation());
  };
  expect_everywhere(in_worlds(2, connect),
                    "the processes did not come together within 500 ms (connection for sums)");
}

TEST(WorldsFailure, EndsTheConnectingOfOthers) {
  Endless endless;
  const auto connect = [&](const WorldPtr& world) {
    const FirstOperation fails = [](c10d::Backend&) -> c10::intrusive_ptr<c10d::Work> {
      throw Error("its device is broken");
    };
    world->impl().group("sums", {0, 1}, at::kCPU, world->rank() == 0 ? endless.operation() : fails);
  };
  expect_everywhere(
      in_worlds(2, connect),
      "process 1: the processes have lost each other (connection for sums): its device is broken");
}

TEST(WorldsFailure, OfSeveralAtOnceIsTheSameEverywhere) {
  for (int round = 0; round < 5; ++round) {
    std::vector<std::string> errors = in_worlds(4, [&](const auto& world) {
      const auto fault = std::make_shared<Fault>();
      const Model model = faulty_model(fault, 4);
      Pipeline pipeline = pipeline_in(world, model, schedule_named("1F1B", 4, 6));
      // Each in its own stage's first forward, two of them at the same time.
      if (world->rank() == 1 || world->rank() == 3) {
        pipeline.set_handler(Kind::RecvF, [](const ActionContext&) { throw Thrown("thrown in a handler"); });
      }
      pipeline.step(presplit(model.data(6)));
    });
    expect_everywhere(errors, "RECV_F0");
    expect_everywhere(errors, "thrown in a handler");
    for (const std::string& error : errors) EXPECT_EQ(error, errors[0]);
  }
}

TEST(WorldsResults, StayWhereTheyAreUnlessTheyAreAskedFor) {
  expect_no_errors(in_worlds(2, [](const auto& world) {
    Pipeline pipeline = pipeline_in(world, mlp(), schedule_named("1F1B", 2, 3));
    const Batch batch = presplit(mlp().data(3));
    EXPECT_EQ(pipeline.step(batch, {.everywhere = false}).loss.defined(), world->rank() == 1);
    const StepResult here = pipeline.eval(batch, {.everywhere = false});
    EXPECT_EQ(here.outputs.size(), world->rank() == 1 ? 1U : 0U);
    const StepResult everywhere = pipeline.eval(batch);
    EXPECT_EQ(everywhere.losses.size(), 3U);
    EXPECT_EQ(everywhere.outputs.size(), 1U);
  }));
}

TEST(WorldsBatch, NeedsOnlyWhatTheStagesOfAProcessTake) {
  const auto data = mlp().data(3);
  Unsplit unsplit(mlp());
  const auto expected = unsplit.run(data);
  const Gradients gradients = unsplit.gradients();
  expect_no_errors(in_worlds(2, [&](const auto& world) {
    Pipeline pipeline = pipeline_in(world, mlp(), schedule_named("ZB-H1", 2, 3));
    std::vector<MicrobatchValues> needed = data;
    for (MicrobatchValues& each : needed) (world->rank() == 0 ? each.targets : each.inputs).clear();
    expect_losses(pipeline.step(presplit(needed)), expected);
    for (const auto& [name, parameter] : pipeline.named_parameters()) {
      EXPECT_TRUE(close(parameter.grad(), gradients.at(name))) << name;
    }
  }));
}

TEST(WorldsStages, AreBuiltOnlyWhereTheyRun) {
  expect_no_errors(in_worlds(2, [](const auto& world) {
    std::vector<Stage> built;
    const auto build = [&](Stage stage) {
      built.push_back(stage);
      return cut(mlp(), 4)(stage);
    };
    const Pipeline pipeline(schedule_named("ZBVZeroBubble", 2, 2), build, options_in(world, mlp()));
    EXPECT_EQ(built, (world->rank() == 0 ? std::vector<Stage>{0, 3} : std::vector<Stage>{1, 2}));
  }));
}

TEST(WorldsParameters, ThatAreTiedAreEqualAfterLoading) {
  expect_no_errors(in_worlds(2, [](const auto& world) {
    Pipeline pipeline = pipeline_in(world, gpt(), schedule_named("1F1B", 2, 3));
    Pipeline::StateDict state;
    for (const auto& item : Unsplit(gpt()).module().named_parameters()) {
      state[item.key()] = torch::full_like(item.value(), item.key() == "l5.weight" ? 3 : 2);
    }
    pipeline.load_state_dict(state);
    for (const auto& [name, parameter] : pipeline.named_parameters()) {
      EXPECT_TRUE(parameter.detach().equal(torch::full_like(parameter, 2))) << name;
    }
  }));
}

TEST(WorldsParameters, AreNotLoadedAnywhereIfOneProcessRefuses) {
  const std::vector<std::string> errors = in_worlds(2, [](const auto& world) {
    Pipeline pipeline = pipeline_in(world, mlp(), schedule_named("1F1B", 2, 3));
    Pipeline::StateDict state;
    for (const auto& item : Unsplit(mlp()).module().named_parameters()) state[item.key()] = item.value();
    if (world->rank() == 1) state.erase("l7.linear.bias");
    EXPECT_THROW(pipeline.load_state_dict(state), ArgumentError);
    state["nobody.knows"] = torch::zeros({1});
    pipeline.load_state_dict(state);
  });
  expect_everywhere(errors, "unknown: nobody.knows");
}

}  // namespace
}  // namespace pipewright
