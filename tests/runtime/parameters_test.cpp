#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <set>

#include "pipewright/base/error.h"
#include "pipewright/schedule/csv.h"
#include "pipewright/schedule/generate.h"
#include "runtime/compare.h"
#include "runtime/models.h"

namespace pipewright {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Schedule schedule_of(const char* name, Microbatch microbatches = 3) {
  return make_schedule({.name = name, .ranks = 2, .microbatches = microbatches});
}

/// Gradients as they count in the norm: tied ones once.
std::vector<at::Tensor> counted_gradients(const Unsplit& unsplit, const Model& model) {
  Gradients gradients = unsplit.gradients();
  for (const auto& group : model.tied) {
    for (std::size_t at = 1; at < group.size(); ++at) gradients.erase(group[at]);
  }
  std::vector<at::Tensor> flat;
  for (const auto& [name, gradient] : gradients) {
    if (gradient.defined()) flat.push_back(gradient.flatten());
  }
  return flat;
}

TEST(GradNorm, IsThatOfOneVector) {
  for (const Model& model : {mlp(), gpt(), frozen()}) {
    SCOPED_TRACE(model.name);
    Unsplit unsplit(model);
    Pipeline pipeline = make_pipeline(model, schedule_of("ZBVZeroBubble"));
    const auto data = model.data(3);
    unsplit.run(data);
    pipeline.step(presplit(data));
    const at::Tensor vector = torch::cat(counted_gradients(unsplit, model));
    for (const double p : {1.0, 2.0, 3.0, 1.5, kInfinity}) {
      EXPECT_TRUE(close(pipeline.grad_norm(p), vector.norm(p))) << "p = " << p;
    }
    EXPECT_TRUE(close(pipeline.grad_norm(), vector.norm(2)));
  }
}

TEST(GradNorm, WithoutGradientsIsZero) {
  const Pipeline pipeline = make_pipeline(mlp(), schedule_of("1F1B"));
  EXPECT_EQ(pipeline.grad_norm().item<double>(), 0);
  EXPECT_EQ(pipeline.grad_norm(kInfinity).item<double>(), 0);
}

TEST(ClipGradNorm, DoesWhatTorchDoes) {
  const Model model = mlp();
  for (const double p : {1.0, 2.0, 3.0, kInfinity}) {
    for (const double max_norm : {0.01, 1e6}) {
      SCOPED_TRACE("p = " + std::to_string(p) + ", at most " + std::to_string(max_norm));
      Unsplit unsplit(model);
      Pipeline pipeline = make_pipeline(model, schedule_of("Interleaved1F1B"));
      unsplit.run(model.data(3));
      pipeline.step(presplit(model.data(3)));
      const double before = torch::nn::utils::clip_grad_norm_(unsplit.module().parameters(), max_norm, p);
      EXPECT_NEAR(pipeline.clip_grad_norm(max_norm, p).item<double>(), before, 1e-5 * before);
      const Gradients expected = unsplit.gradients();
      for (const auto& [name, parameter] : pipeline.named_parameters()) {
        // Torch divides by the norm plus 1e-6.
        EXPECT_TRUE(torch::allclose(parameter.grad(), expected.at(name), 1e-3, 1e-9)) << name;
      }
      EXPECT_LE(pipeline.grad_norm(p).item<double>(), std::min(before, max_norm) * (1 + 1e-4));
    }
  }
}

TEST(ClipGradNorm, ScalesTiedParametersAlike) {
  const Model model = gpt();
  Pipeline pipeline = make_pipeline(model, schedule_of("1F1B"));
  pipeline.step(presplit(model.data(3)));
  Gradients expected;
  const double factor = 0.125;
  for (const auto& [name, parameter] : pipeline.named_parameters())
    expected[name] = parameter.grad() * factor;
  const at::Tensor norm = pipeline.grad_norm();
  pipeline.clip_grad_norm(norm.item<double>() * factor);
  for (const auto& [name, parameter] : pipeline.named_parameters()) {
    EXPECT_TRUE(torch::allclose(parameter.grad(), expected.at(name), 1e-3, 1e-9)) << name;
  }
  EXPECT_NEAR(pipeline.grad_norm().item<double>(), norm.item<double>() * factor, 1e-4);
}

at::Tensor parameter_of(const Pipeline& pipeline, const std::string& wanted) {
  for (const auto& [name, parameter] : pipeline.named_parameters()) {
    if (name == wanted) return parameter;
  }
  return {};
}

TEST(TiedParameters, AreEqualFromTheStart) {
  const Pipeline pipeline = make_local_pipeline(gpt(), schedule_of("1F1B"));
  const Unsplit unsplit(gpt());
  const at::Tensor tokens = parameter_of(pipeline, "l0.tokens");
  const at::Tensor head = parameter_of(pipeline, "l5.weight");
  EXPECT_FALSE(tokens.is_same(head));
  EXPECT_TRUE(tokens.equal(head));
  // It is the first of the group whose values count.
  const Slice alone(gpt(), 0, 1);
  EXPECT_TRUE(tokens.equal(alone.named_parameters()["l0.tokens"]));
}

TEST(TiedParameters, AreEqualAfterLoading) {
  Pipeline pipeline = make_local_pipeline(gpt(), schedule_of("1F1B"));
  Pipeline::StateDict state;
  for (const auto& [name, tensor] : pipeline.state_dict()) state[name] = torch::full_like(tensor, 2);
  state["l5.weight"] = torch::full_like(state["l5.weight"], 3);
  pipeline.load_state_dict(state);
  EXPECT_TRUE(parameter_of(pipeline, "l0.tokens").equal(parameter_of(pipeline, "l5.weight")));
}

TEST(TiedParameters, SumTheirGradientsOnceAStep) {
  const Model model = gpt();
  Unsplit unsplit(model);
  Pipeline pipeline = make_pipeline(model, schedule_of("ZB-H1"));
  // Gradients of earlier steps are in both already and must not be added again.
  for (int step = 0; step < 3; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    const auto data = model.data(3);
    unsplit.run(data, {}, 3);
    pipeline.step(presplit(data), {.accumulation = 3});
    expect_gradients(pipeline, unsplit.gradients());
  }
}

TEST(TiedParameters, MayBeThreeAndOnOneRank) {
  // Three layers of the same shape, whose weights are one.
  Model model = dropout();
  model.tied = {{"l0.linear.weight", "l2.linear.weight", "l3.linear.weight"},
                {"l1.linear.bias", "l4.linear.bias"}};
  for (const char* name : {"1F1B", "ZBVZeroBubble", "Interleaved1F1B"}) {
    SCOPED_TRACE(name);
    expect_parity(model, schedule_of(name));
    expect_parity(model, make_schedule({.name = name, .ranks = 1, .microbatches = 2}));
  }
}

TEST(TiedParameters, ThatCannotBeOneAreRefused) {
  const auto build = [](std::vector<std::vector<std::string>> tied) {
    PipelineOptions options = options_for(mlp());
    options.tied = std::move(tied);
    Pipeline pipeline(schedule_of("1F1B"), cut(mlp(), 2), options);
  };
  EXPECT_THROW(build({{"l0.linear.weight", "nowhere"}}), ArgumentError);
  EXPECT_THROW(build({{"l0.linear.weight", "l1.linear.weight"}}), ArgumentError);
}

TEST(StateDict, OfOneSplitLoadsUnderAnother) {
  const Model model = gpt();
  Pipeline trained = make_local_pipeline(model, schedule_of("1F1B"));
  trained.step(presplit(model.data(3)));
  {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : trained.parameters()) parameter.sub_(parameter.grad());
  }
  Pipeline::StateDict saved;
  for (const auto& [name, tensor] : trained.state_dict()) saved[name] = tensor.detach().clone();

  Pipeline other =
      make_local_pipeline(model, make_schedule({.name = "ZBVZeroBubble", .ranks = 3, .microbatches = 3}));
  other.load_state_dict(saved);
  const auto data = model.data(3);
  const StepResult expected = trained.eval(presplit(data));
  const StepResult result = other.eval(presplit(data));
  EXPECT_TRUE(close(result.loss, expected.loss));
  EXPECT_TRUE(close(result.outputs.at(0), expected.outputs.at(0)));
}

/// Stages with a parameter and a buffer each, named as in a Sequential of stages.
StageModel norm_stage(Stage) {
  torch::nn::BatchNorm1d norm(3);
  norm->to(test_device());
  return StageModel(norm);
}

TEST(StateDict, HasBuffersAndIsNotACopy) {
  Pipeline pipeline(schedule_of("1F1B"), norm_stage, options_for(mlp()));
  const auto state = pipeline.state_dict();
  EXPECT_EQ(state.size(), 10U);
  ASSERT_EQ(state.count("1.running_mean"), 1U);
  pipeline.eval(presplit({{{numbers(1, {4, 3})}, {}, {}}}), {.microbatches = 1});
  EXPECT_GT(state.at("1.num_batches_tracked").item<int>(), 0);
}

std::string load_refusal(Pipeline& pipeline, const Pipeline::StateDict& state) {
  try {
    pipeline.load_state_dict(state);
  } catch (const ArgumentError& error) {
    return error.what();
  }
  return "";
}

TEST(StateDict, ThatDoesNotFitIsRefusedAndChangesNothing) {
  Pipeline pipeline = make_local_pipeline(mlp(), schedule_of("1F1B"));
  Pipeline::StateDict before;
  Pipeline::StateDict zeros;
  for (const auto& [name, tensor] : pipeline.state_dict()) {
    before[name] = tensor.detach().clone();
    zeros[name] = torch::zeros_like(tensor);
  }
  Pipeline::StateDict missing = zeros;
  missing.erase("l7.linear.bias");
  Pipeline::StateDict unknown = zeros;
  unknown["l9.linear.bias"] = torch::zeros({1});
  Pipeline::StateDict reshaped = zeros;
  reshaped["l6.linear.weight"] = torch::zeros({8, 1});
  Pipeline::StateDict absent = zeros;
  absent["l5.linear.weight"] = at::Tensor();
  for (const auto& [state, name] :
       {std::pair(missing, "l7.linear.bias"), std::pair(unknown, "l9.linear.bias"),
        std::pair(reshaped, "l6.linear.weight"), std::pair(absent, "l5.linear.weight")}) {
    const std::string message = load_refusal(pipeline, state);
    EXPECT_NE(message.find(name), std::string::npos) << message;
    for (const auto& [each, tensor] : pipeline.state_dict())
      EXPECT_TRUE(tensor.equal(before.at(each))) << each;
  }
  EXPECT_EQ(load_refusal(pipeline, zeros), "");
  for (const auto& [name, tensor] : pipeline.state_dict()) EXPECT_TRUE(tensor.equal(zeros.at(name))) << name;
}

TEST(NamedParameters, AreThoseOfASequentialOfStagesByDefault) {
  const Pipeline pipeline(schedule_of("1F1B"), [](Stage) { return StageModel(torch::nn::Linear(3, 3)); });
  std::vector<std::string> names;
  for (const auto& [name, parameter] : pipeline.named_parameters()) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"0.weight", "0.bias", "1.weight", "1.bias"}));
}

TEST(NamedParameters, AreThoseOfTheUnsplitModelIfToldSo) {
  const Unsplit unsplit(mlp());
  for (const char* name : {"1F1B", "Interleaved1F1B", "V-Half"}) {
    std::set<std::string> names;
    for (const auto& [parameter_name, tensor] :
         make_local_pipeline(mlp(), schedule_of(name)).named_parameters()) {
      EXPECT_TRUE(names.insert(parameter_name).second) << parameter_name;
    }
    std::set<std::string> expected;
    for (const auto& [parameter_name, gradient] : unsplit.gradients()) expected.insert(parameter_name);
    EXPECT_EQ(names, expected);
  }
}

TEST(NamedParameters, ShowATensorThatStagesShareOnce) {
  const auto shared = std::make_shared<torch::nn::LinearImpl>(3, 3);
  Pipeline pipeline(schedule_of("1F1B"), [&](Stage) { return StageModel(shared); }, options_for(mlp()));
  EXPECT_EQ(pipeline.named_parameters().size(), 2U);
  EXPECT_EQ(pipeline.parameters().size(), 2U);
}

TEST(SharedParameters, HaveTheSumOfTheirGradients) {
  // One module on the first and the third stage, which may run at the same time.
  const auto layer = [](std::uint64_t seed) {
    auto made = std::make_shared<torch::nn::LinearImpl>(4, 4);
    const torch::NoGradGuard no_grad;
    made->to(test_device());
    for (at::Tensor& parameter : made->parameters()) parameter.copy_(numbers(seed, parameter.sizes()));
    return made;
  };
  const auto data = dropout().data(8);
  const auto expected_shared = layer(1);
  const auto expected_between = layer(2);
  for (const MicrobatchValues& each : data) {
    const at::Tensor x = expected_between->forward(expected_shared->forward(each.inputs[0]).tanh()).tanh();
    (squared_error({expected_shared->forward(x)}, each.targets) / 8).backward();
  }
  for (const char* name : {"1F1B", "GPipe", "ZB-H1", "ZB-H2"}) {
    SCOPED_TRACE(name);
    const auto shared = layer(1);
    const auto between = layer(2);
    const StageFactory build = [&](Stage stage) {
      const auto module = stage == 1 ? between : shared;
      return StageModel(
          [module, last = stage == 2](const at::Tensor& x) {
            const at::Tensor y = module->forward(x);
            return last ? y : y.tanh();
          },
          module);
    };
    Pipeline pipeline(make_schedule({.name = name, .ranks = 3, .microbatches = 8}), build,
                      options_for(dropout()));
    pipeline.step(presplit(data));
    EXPECT_TRUE(close(shared->weight.grad(), expected_shared->weight.grad()));
    EXPECT_TRUE(close(shared->bias.grad(), expected_shared->bias.grad()));
    EXPECT_TRUE(close(between->weight.grad(), expected_between->weight.grad()));
  }
}

TEST(NamedParameters, MustBeDistinct) {
  const StageFactory build = [](Stage) {
    StageModel made(torch::nn::Linear(3, 3));
    made.global_name = [](const std::string& name) { return name; };
    return made;
  };
  EXPECT_THROW(Pipeline(schedule_of("1F1B"), build), ArgumentError);
}

TEST(StageFactory, IsCalledOnceForEveryStageInTheirOrder) {
  for (const char* name : {"1F1B", "DualPipeV"}) {
    std::vector<Stage> built;
    const Schedule schedule = schedule_of(name);
    const auto build = [&](Stage stage) {
      built.push_back(stage);
      return cut(mlp(), schedule.stage_count())(stage);
    };
    Pipeline pipeline(schedule, build, options_for(mlp()));
    pipeline.step(presplit(mlp().data(3)));
    pipeline.eval(presplit(mlp().data(2)), {.microbatches = 2});
    std::vector<Stage> expected(static_cast<std::size_t>(schedule.stage_count()));
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(built, expected);
  }
}

TEST(Stages, CanBeLookedAtAndSwitchedToEvaluation) {
  Pipeline pipeline(schedule_of("1F1B"), norm_stage);
  EXPECT_THROW(pipeline.stage(2), ArgumentError);
  EXPECT_THROW(pipeline.stage(-1), ArgumentError);
  EXPECT_TRUE(pipeline.stage(1).module->is_training());
  pipeline.train(false);
  EXPECT_FALSE(pipeline.stage(0).module->is_training());
  EXPECT_FALSE(pipeline.stage(1).module->is_training());
  pipeline.train();
  EXPECT_TRUE(pipeline.stage(0).module->is_training());
}

}  // namespace
}  // namespace pipewright
