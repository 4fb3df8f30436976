#include <gtest/gtest.h>

#include <set>

#include "pipewright/schedule/csv.h"
#include "pipewright/schedule/generate.h"
#include "runtime/backward_cases.h"
#include "runtime/compare.h"
#include "runtime/operator_counter.h"

namespace pipewright {

void PrintTo(const BackwardCase& each, std::ostream* out) { *out << each.name; }

namespace {

using Counts = std::map<std::string, int>;

class SplitBackward : public testing::TestWithParam<BackwardCase> {};
INSTANTIATE_TEST_SUITE_P(Every, SplitBackward, testing::ValuesIn(backward_cases()),
                         [](const auto& parameter) { return parameter.param.name; });

Schedule split_schedule(Rank ranks) {
  return make_schedule({.name = "ZB-H1", .ranks = ranks, .microbatches = 3});
}

/// One rank that goes back stage by stage: gradients wait while the same stage runs the next backward.
Schedule by_stage(const Model& model, bool split) {
  Schedule schedule;
  schedule.ranks.resize(1);
  const auto stages = static_cast<Stage>(model.layers.size());
  const auto add = [&](Stage stage, Kind kind, Microbatch k) {
    schedule.ranks[0].push_back(make_action(stage, kind, k));
  };
  for (Stage stage = 0; stage < stages; ++stage) {
    for (Microbatch k = 0; k < 3; ++k) add(stage, Kind::F, k);
  }
  for (Stage stage = stages - 1; stage >= 0; --stage) {
    for (Microbatch k = 0; k < 3; ++k) {
      add(stage, split ? Kind::I : Kind::B, k);
      if (split) add(stage, Kind::W, k);
    }
  }
  infer_placement(schedule);
  return schedule;
}

/// One rank that leaves every W to the end.
Schedule late_weights(const Model& model) {
  return parse_csv(model.layers.size() == 3
                       ? "0F0,0F1,1F0,1F1,2F0,2F1,2I1,2I0,1I0,1I1,0I1,0I0,2W0,1W0,0W0,0W1,1W1,2W1\n"
                       : "0F0,0F1,1F0,1F1,1I1,1I0,0I1,0I0,1W0,0W0,0W1,1W1\n");
}

TEST_P(SplitBackward, GivesTheGradientsOfAWholeOne) {
  for (const bool before : {true, false}) {
    for (const bool after : {true, false}) {
      if (!before && (!after || GetParam().changes_inputs)) continue;
      SCOPED_TRACE(std::string(before ? "behind" : "in front of") + " a stage with parameters");
      const Model model = case_model(GetParam(), before, after);
      const auto ranks = static_cast<Rank>(model.layers.size());
      expect_parity(model, split_schedule(ranks));
      expect_parity(model, late_weights(model));
      expect_parity(model, by_stage(model, true));
      expect_parity(model, by_stage(model, false));
      expect_parity(model, make_schedule({.name = "1F1B", .ranks = ranks, .microbatches = 3}));
    }
  }
}

TEST_P(SplitBackward, ComputesNoHeavyOperatorTwice) {
  const Model model = case_model(GetParam(), true, true);
  Unsplit unsplit(model);
  Pipeline pipeline = make_local_pipeline(model, split_schedule(3));
  const auto data = model.data(3);
  Counts whole;
  {
    const OperatorCounter counter;
    unsplit.run(data);
    whole = counter.all();
  }
  const OperatorCounter counter;
  pipeline.step(presplit(data));
  EXPECT_EQ(counter.all(), whole);
}

/// What a stage of two dense layers computes in its I and its W, for one microbatch.
TEST(SplitOfDenseLayers, LeavesOneProductALayerToTheWeights) {
  Model model = dropout();
  model.layers = std::vector(6, dense(4, 4));
  Pipeline pipeline = make_local_pipeline(model, parse_csv("0F0,0I0,0W0\n1F0,1I0,1W0\n2F0,2I0,2W0\n"));
  const OperatorCounter counter;
  pipeline.step(presplit(model.data(1)));
  for (const char* stage : {"1", "2"}) {
    EXPECT_EQ(counter.in(stage + std::string("I")), (Counts{{"aten::mm", 2}, {"aten::tanh_backward", 2}}));
    EXPECT_EQ(counter.in(stage + std::string("W")), (Counts{{"aten::mm", 2}}));
  }
  // The first stage has no input gradient, but its I goes down to the first layer like the others'.
  EXPECT_EQ(counter.in("0I").at("aten::mm"), 1);
  EXPECT_EQ(counter.in("0W").at("aten::mm"), 2);
  EXPECT_TRUE(pipeline.unsplit_stages().empty());
}

/// The gradient of a weight is a view of what a product gives: it becomes the parameter's as it is.
TEST(GradientsOfDenseLayers, AreNotCopied) {
  Model model = dropout();
  model.layers = std::vector(4, wrap<torch::nn::Linear>(4, 4));
  Pipeline pipeline = make_local_pipeline(model, parse_csv("0F0,0B0,0F1,0B1\n"));
  const OperatorCounter counter;
  pipeline.step(presplit(model.data(2)));
  EXPECT_EQ(counter.calls_of("aten::clone"), 0);
}

/// From the second microbatch on there is something to add to.
TEST(GradientsOfDenseLayers, AreAddedByTheirProducts) {
  Model model = dropout();
  model.layers = std::vector(4, wrap<torch::nn::Linear>(4, 4));
  for (const char* plan : {"0F0,0B0,0F1,0B1,0F2,0B2\n", "0F0,0I0,0F1,0W0,0I1,0F2,0I2,0W1,0W2\n"}) {
    SCOPED_TRACE(plan);
    Pipeline pipeline = make_local_pipeline(model, parse_csv(plan));
    const OperatorCounter counter;
    pipeline.step(presplit(model.data(3)));
    EXPECT_EQ(counter.calls_of("aten::addmm_"), 2 * 4);
    EXPECT_EQ(counter.calls_of("aten::addmv_"), 2 * 4);  // of the biases
    EXPECT_EQ(counter.calls_of("aten::add_"), 0);
  }
}

/// Such products are nothing that a device's library could add by itself.
TEST(GradientsOfDenseLayers, AreAddedOnTheirOwnWhereTheWeightIsAVector) {
  Model model = dropout();
  model.layers = {wrap<torch::nn::Linear>(4, 1), wrap<torch::nn::Linear>(1, 4)};
  Pipeline pipeline = make_local_pipeline(model, parse_csv("0F0,0B0,0F1,0B1\n"));
  const OperatorCounter counter;
  pipeline.step(presplit(model.data(2)));
  EXPECT_EQ(counter.calls_of("aten::addmm_"), 0);
}

TEST(SmallGradients, AreAddedAllAtOnce) {
  Model model = dropout();
  model.layers = std::vector(4, wrap<torch::nn::LayerNorm>(torch::nn::LayerNormOptions({4})));
  Pipeline pipeline = make_local_pipeline(model, parse_csv("0F0,0B0,0F1,0B1,0F2,0B2\n"));
  const OperatorCounter counter;
  pipeline.step(presplit(model.data(3)));
  EXPECT_EQ(counter.calls_of("aten::_foreach_add_"), 2);
}

class GradientsOfParts : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Of, GradientsOfParts,
                         testing::Values("PartsOfAProduct", "PartsOfAPermutation", "EveryPartOfAPermutation",
                                         "EveryPartAndTheWhole"),
                         [](const auto& parameter) { return parameter.param; });

TEST_P(GradientsOfParts, AreAddedWhereTheyBelong) {
  const std::vector<BackwardCase> cases = backward_cases();
  const auto parts = std::ranges::find(cases, GetParam(), &BackwardCase::name);
  ASSERT_NE(parts, cases.end());
  const Model model = case_model(*parts, true, true);
  for (const char* name : {"1F1B", "ZB-H1"}) {
    SCOPED_TRACE(name);
    Pipeline pipeline =
        make_local_pipeline(model, make_schedule({.name = name, .ranks = 3, .microbatches = 2}));
    const OperatorCounter counter;
    pipeline.step(presplit(model.data(2)));
    EXPECT_EQ(counter.calls_of("aten::select_backward") + counter.calls_of("aten::slice_backward"), 0);
    // What they are parts of was contiguous, and so is its gradient.
    EXPECT_EQ(counter.calls_of("aten::clone"), 0);
  }
}

TEST(GradientsOfAllParts, AreJoinedByOneOperator) {
  const std::vector<BackwardCase> cases = backward_cases();
  const auto parts = std::ranges::find(cases, "EverySliceOfAProduct", &BackwardCase::name);
  ASSERT_NE(parts, cases.end());
  const Model model = case_model(*parts, true, false);
  for (const char* plan :
       {"0F0,1F0,1B0,0B0,0F1,1F1,1B1,0B1\n", "0F0,1F0,1I0,1W0,0I0,0W0,0F1,1F1,1I1,1W1,0I1,0W1\n"}) {
    SCOPED_TRACE(plan);
    Pipeline pipeline = make_local_pipeline(model, parse_csv(plan));
    const OperatorCounter counter;
    pipeline.step(presplit(model.data(2)));
    EXPECT_EQ(counter.calls_of("aten::cat"), 2 + 1);  // and once for the losses
  }
}

/// Gradients that are watched from where they are made to where the tensor is that they are parts of.
struct WatchedParts {
  inline static std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> made;
  inline static int alive = 0;

  struct Made : torch::autograd::Function<Made> {
    static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   torch::autograd::variable_list grads) {
      at::Tensor grad = grads[0].clone();
      made.emplace_back(grad.getIntrusivePtr());
      return {grad};
    }
  };
  struct Joined : torch::autograd::Function<Joined> {
    static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   torch::autograd::variable_list grads) {
      alive +=
          static_cast<int>(std::ranges::count(made, false, [](const auto& each) { return each.expired(); }));
      return grads;
    }
  };
};

TEST(GradientsOfAllParts, AreFreedWhenTheyAreJoined) {
  Model model = dropout();
  model.layers = {
      dense(4, 4), function([](const Values& in) {
        const at::Tensor x = WatchedParts::Joined::apply(in.at(0));
        return Values{torch::cat(
            {WatchedParts::Made::apply(x.slice(1, 2, 4)), WatchedParts::Made::apply(x.slice(1, 0, 2))}, 1)};
      })};
  for (const char* plan : {"0F0,1F0,1B0,0B0\n", "0F0,1F0,1I0,1W0,0I0,0W0\n"}) {
    SCOPED_TRACE(plan);
    WatchedParts::made.clear();
    WatchedParts::alive = 0;
    Pipeline pipeline = make_local_pipeline(model, parse_csv(plan));
    pipeline.step(presplit(model.data(1)));
    EXPECT_EQ(WatchedParts::made.size(), 2U);
    EXPECT_EQ(WatchedParts::alive, 0);
  }
}

TEST(SplitOfACustomFunction, AsksForEveryGradientOnce) {
  const BackwardCase product{"Product", counting_product(), [](Microbatch k) {
                               return Values{numbers(static_cast<std::uint64_t>(k), {3, 4})};
                             }};
  const Model model = case_model(product, true, true);
  Pipeline pipeline = make_local_pipeline(model, split_schedule(3));
  CountingProduct::input_gradients = 0;
  CountingProduct::weight_gradients = 0;
  pipeline.step(presplit(model.data(3)));
  EXPECT_EQ(CountingProduct::input_gradients, 3);
  EXPECT_EQ(CountingProduct::weight_gradients, 3);
}

TEST(UnsplitStages, AreThoseThatAskForIt) {
  Model model = dropout();
  model.layers = std::vector(3, dense(4, 4));
  const Schedule schedule = split_schedule(3);
  const StageFactory build = [&](Stage stage) {
    StageModel made = cut(model, 3)(stage);
    made.split_backward = stage != 1;
    return made;
  };
  const auto data = model.data(3);
  Unsplit unsplit(model);
  const auto expected = unsplit.run(data);
  Pipeline pipeline(schedule, build, options_for(model));
  EXPECT_TRUE(pipeline.unsplit_stages().empty());
  {
    const OperatorCounter counter;
    expect_losses(pipeline.step(presplit(data)), expected);
    EXPECT_EQ(counter.in("1I").at("aten::mm"), 6);
    EXPECT_EQ(counter.in("1W"), Counts{});
    EXPECT_EQ(counter.in("2I").at("aten::mm"), 3);
  }
  expect_gradients(pipeline, unsplit.gradients());
  const auto unsplit_stages = pipeline.unsplit_stages();
  ASSERT_EQ(unsplit_stages.size(), 1U);
  EXPECT_EQ(unsplit_stages.begin()->first, 1);
  EXPECT_NE(unsplit_stages.begin()->second, "");
}

TEST(UnsplitStages, AreThoseWhoseOperatorsCannotBeSplit) {
  const BackwardCase product{"Product", counting_product(), [](Microbatch k) {
                               return Values{numbers(static_cast<std::uint64_t>(k), {3, 4})};
                             }};
  Model model = case_model(product, true, false);
  model.layers = {dense(4, 4), product.layer, dense(4, 4)};
  Pipeline pipeline = make_local_pipeline(model, split_schedule(3));
  pipeline.step(presplit(model.data(3)));
  const auto unsplit = pipeline.unsplit_stages();
  ASSERT_EQ(unsplit.count(1), 1U);
  EXPECT_NE(unsplit.at(1), "");
  EXPECT_EQ(unsplit.size(), 1U);
}

TEST(UnsplitStages, AreNoneWhereNothingIsSplit) {
  Pipeline pipeline =
      make_local_pipeline(mlp(), make_schedule({.name = "1F1B", .ranks = 2, .microbatches = 3}));
  pipeline.step(presplit(mlp().data(3)));
  EXPECT_TRUE(pipeline.unsplit_stages().empty());
}

/// Counts the gradients that have been added to a parameter.
struct CountHook : torch::autograd::FunctionPostHook {
  explicit CountHook(std::atomic<int>& calls) : count(calls) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    ++count;
    return outputs;
  }
  std::atomic<int>& count;
};

TEST(HooksOfParameters, RunOnceAMicrobatch) {
  // Data-parallel wrappers hook what accumulates a parameter's gradient.
  Model model = dropout();
  model.layers = std::vector(2, dense(4, 4));
  for (const char* name : {"1F1B", "ZB-H1"}) {
    SCOPED_TRACE(name);
    Pipeline pipeline =
        make_local_pipeline(model, make_schedule({.name = name, .ranks = 2, .microbatches = 3}));
    std::map<std::string, std::atomic<int>> counts;
    std::vector<decltype(torch::autograd::impl::grad_accumulator(at::Tensor()))> accumulators;
    for (const auto& [parameter_name, parameter] : pipeline.named_parameters()) {
      accumulators.push_back(torch::autograd::impl::grad_accumulator(parameter));
      accumulators.back()->add_post_hook(std::make_unique<CountHook>(counts[parameter_name]));
    }
    pipeline.step(presplit(model.data(3)));
    EXPECT_EQ(counts.size(), 4U);
    for (const auto& [parameter_name, count] : counts) EXPECT_EQ(count, 3) << parameter_name;
  }
}

}  // namespace
}  // namespace pipewright
