#include "pipewright/frontend/trace.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "frontend/traced_models.h"
#include "frontend/weighted_sum.h"
#include "gpt/gpt.h"
#include "pipewright/base/error.h"
#include "pipewright/frontend/graph_module.h"
#include "pipewright/frontend/graph_stages.h"
#include "pipewright/frontend/pipe_split.h"
#include "pipewright/frontend/split.h"
#include "pipewright/runtime/pipeline.h"
#include "pipewright/schedule/generate.h"

namespace pipewright {
namespace {

constexpr std::int64_t kTraced = 4;
const std::vector<std::int64_t> kBatches = {kTraced, 1 + kTraced / 2, 2 * kTraced + 3, 31};  // one is traced

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         at::allclose(a, b, 0, 0, /*equal_nan=*/true);
}

struct Outcome {
  Values outputs;
  Values input_gradients;
};

Outcome run(const std::function<Values(const Values&)>& forward, const Values& inputs) {
  torch::manual_seed(7);
  Outcome outcome;
  Values leaves;
  Values given;
  for (const at::Tensor& input : inputs) {
    leaves.push_back(input.defined() ? input.clone() : input);
    if (input.defined() && input.is_floating_point()) leaves.back().requires_grad_(true);
    given.push_back(input.defined() ? leaves.back().clone() : input);
  }
  const Values outputs = forward(given);
  const at::Tensor sum = weighted_sum(outputs);
  if (sum.requires_grad()) sum.backward();
  for (const at::Tensor& output : outputs) {
    if (output.defined()) outcome.outputs.push_back(output.detach().clone());
  }
  for (const at::Tensor& leaf : leaves) {
    if (leaf.defined()) outcome.input_gradients.push_back(leaf.grad());
  }
  return outcome;
}

Values present(const Values& values) {
  Values there;
  std::ranges::copy_if(values, std::back_inserter(there),
                       [](const at::Tensor& value) { return value.defined(); });
  return there;
}

void expect_same(const Values& wanted, const Values& got, const std::string& what) {
  ASSERT_EQ(wanted.size(), got.size()) << what;
  for (std::size_t at = 0; at < wanted.size(); ++at) {
    ASSERT_EQ(wanted[at].defined(), got[at].defined()) << what << ' ' << at;
    if (!wanted[at].defined()) continue;
    EXPECT_TRUE(same_bits(wanted[at], got[at])) << what << ' ' << at;
  }
}

class Traced : public testing::TestWithParam<TracedCase> {};

TEST_P(Traced, RunsAsTheModelAtAnyBatch) {
  const StageModel model = made(GetParam());
  const StageModel other = made(GetParam());
  const TracedModel traced = trace(other, GetParam().inputs(kTraced), GetParam().options);
  GraphModule graph(traced.graph, traced.state);
  for (const std::int64_t batch : kBatches) {
    SCOPED_TRACE("batch " + std::to_string(batch) + "\n" + to_text(traced.graph));
    const Values inputs = GetParam().inputs(batch);
    model.module->zero_grad();
    graph.zero_grad();
    const Outcome wanted = run(model.forward, inputs);
    const Outcome got = run([&](const Values& values) { return graph.forward(values); }, present(inputs));
    expect_same(wanted.outputs, got.outputs, "output");
    expect_same(wanted.input_gradients, got.input_gradients, "gradient of input");
    const auto parameters = other.module->named_parameters();
    for (const auto& item : model.module->named_parameters()) {
      expect_same({item.value(), item.value().grad()},
                  {parameters[item.key()], parameters[item.key()].grad()}, item.key());
    }
    const auto buffers = other.module->named_buffers();
    for (const auto& item : model.module->named_buffers()) {
      expect_same({item.value()}, {buffers[item.key()]}, item.key());
    }
  }
}

std::vector<std::size_t> even_cuts(const Graph& graph, std::size_t stages) {
  std::vector<std::size_t> cuts;
  for (std::size_t stage = 1; stage < stages; ++stage) cuts.push_back(stage * graph.nodes.size() / stages);
  return cuts;
}

/// Runs the stages as a pipeline, and compares with the model. False where the cut is refused.
bool runs_in_stages(const TracedCase& from, const TracedModel& traced, const std::vector<std::size_t>& cuts,
                    std::int64_t batch) {
  PartitionedGraph parts;
  try {
    parts = partition(traced.graph, cuts);
  } catch (const ArgumentError& error) {
    EXPECT_TRUE(from.writes_in_place) << error.what();
    return false;
  }
  const auto load = [&](const Graph& of) { return copied(of, traced.state); };
  PipelineOptions options{.loss = [](const Values& outputs, const Values&) { return weighted_sum(outputs); },
                          .routes = parts.routes,
                          .tied = parts.tied,
                          .timeout = std::chrono::seconds(30)};
  options.threads_per_rank = 1;
  const auto ranks = static_cast<Rank>(parts.stages.size());
  Pipeline pipeline(make_schedule({.name = "1F1B", .ranks = ranks, .microbatches = 1}),
                    graph_stages(parts, load), options);
  const StageModel model = made(from);
  const Outcome wanted = run(model.forward, from.inputs(batch));
  torch::manual_seed(7);
  Batch brought;
  brought.microbatches = {{present(from.inputs(batch)), {}, {}}};
  const StepResult step = pipeline.step(brought, {.outputs = true});
  EXPECT_EQ(step.outputs.size(), wanted.outputs.size());
  for (std::size_t at = 0; at < wanted.outputs.size(); ++at) {
    // Numbers are merged into a list of them.
    EXPECT_TRUE(same_bits(step.outputs[at].reshape(wanted.outputs[at].sizes()), wanted.outputs[at]))
        << "output " << at;
  }
  std::map<std::string, at::Tensor> gradients;
  std::map<std::string, at::Tensor> buffers;
  for (Stage stage = 0; stage < ranks; ++stage) {
    for (const auto& item : pipeline.stage(stage).module->named_parameters())
      gradients[item.key()] = item.value().grad();
    for (const auto& item : pipeline.stage(stage).module->named_buffers()) buffers[item.key()] = item.value();
  }
  for (const auto& item : model.module->named_parameters()) {
    if (!item.value().grad().defined()) continue;
    if (from.sums_in_another_order) {
      EXPECT_TRUE(at::allclose(gradients[item.key()], item.value().grad(), from.tolerance, from.tolerance))
          << item.key();
    } else {
      EXPECT_TRUE(same_bits(gradients[item.key()], item.value().grad())) << item.key();
    }
  }
  for (const auto& item : model.module->named_buffers()) {
    EXPECT_TRUE(same_bits(buffers[item.key()], item.value())) << item.key();
  }
  return true;
}

TEST_P(Traced, RunsInStages) {
  int done = 0;
  for (const std::size_t stages : {2, 3}) {
    for (const std::int64_t batch : {kTraced, 2 * kTraced + 1}) {
      const TracedModel traced = trace(made(GetParam()), GetParam().inputs(kTraced), GetParam().options);
      SCOPED_TRACE(std::to_string(stages) + " stages, batch " + std::to_string(batch) + "\n" +
                   to_text(traced.graph));
      done += runs_in_stages(GetParam(), traced, even_cuts(traced.graph, stages), batch) ? 1 : 0;
    }
  }
  EXPECT_TRUE(done > 0 || GetParam().writes_in_place);
}

TEST_P(Traced, RunsCutAnywhere) {
  constexpr std::size_t kMostCuts = 30;
  const std::size_t nodes =
      trace(made(GetParam()), GetParam().inputs(kTraced), GetParam().options).graph.nodes.size();
  int done = 0;
  for (std::size_t cut = 1; cut < nodes; cut += 1 + nodes / kMostCuts) {
    const TracedModel traced = trace(made(GetParam()), GetParam().inputs(kTraced), GetParam().options);
    SCOPED_TRACE("cut at " + std::to_string(cut) + "\n" + to_text(traced.graph));
    done += runs_in_stages(GetParam(), traced, {cut}, 2 * kTraced + 1) ? 1 : 0;
  }
  EXPECT_GT(done, 0);
}

INSTANTIATE_TEST_SUITE_P(Models, Traced, testing::ValuesIn(traced_cases()),
                         [](const auto& instance) { return instance.param.name; });

TEST(Trace, CutsBetweenBlocksPassOneTensor) {
  const TracedCase gpt = case_named("gpt");
  const TracedModel traced = trace(made(gpt), gpt.inputs(kTraced));
  const std::vector<std::size_t> cuts = {cut_before(traced.graph, "blocks.1"),
                                         cut_after(traced.graph, "blocks.2")};
  EXPECT_EQ(cuts[1], cut_before(traced.graph, "blocks.3"));
  for (const Graph& part : partition(traced.graph, cuts).stages) {
    EXPECT_EQ(part.inputs.size(), 1U) << to_text(part);
    EXPECT_EQ(part.outputs.size(), 1U) << to_text(part);
  }
  EXPECT_TRUE(runs_in_stages(gpt, traced, cuts, 9));
}

TEST(Trace, IsCutByItsCosts) {
  const TracedCase gpt = case_named("gpt");
  const TracedModel traced = trace(made(gpt), gpt.inputs(kTraced));
  const std::vector<std::size_t> cuts = balanced_cuts(traced.graph, 4, estimate_costs(traced.graph));
  ASSERT_EQ(cuts.size(), 3U);
  EXPECT_TRUE(runs_in_stages(gpt, traced, cuts, 6));
}

TEST(Trace, FindsTheMarksOfTheModel) {
  const TracedCase marked = case_named("marked");
  const TracedModel traced = trace(made(marked), marked.inputs(kTraced));
  const std::vector<std::size_t> cuts = marked_cuts(traced.graph);
  ASSERT_EQ(cuts.size(), 2U);
  EXPECT_EQ(to_text(traced.graph),
            "inputs input=%input\n"
            "# a\n"
            "%t: Float[6, 6] = aten::t(%a.weight)\n"
            "%addmm: Float[4, 6] = aten::addmm(%a.bias, %input, %t, 1, 1)\n"
            "%relu: Float[4, 6] = aten::relu(%addmm)\n"
            "pipewright.pipe_split()\n"
            "# b\n"
            "%t_1: Float[6, 6] = aten::t(%b.weight)\n"
            "%addmm_1: Float[4, 6] = aten::addmm(%b.bias, %relu, %t_1, 1, 1)\n"
            "pipewright.pipe_split()\n"
            "%tanh: Float[4, 6] = aten::tanh(%addmm_1)\n"
            "outputs output=%tanh\n");
  EXPECT_TRUE(runs_in_stages(marked, traced, cuts, 5));
}

TEST(Trace, MarksWithoutOperatorsBetweenThemAreOne) {
  const auto model = [](const at::Tensor& x) {
    const at::Tensor first = pipe_split(x);  // before it, a size is taken
    const at::Tensor marked = first + at::zeros({x.size(0)});
    return pipe_split(pipe_split(pipe_split(marked)).sin());
  };
  const TracedModel traced = trace(StageModel(model), {at::randn({3})});
  EXPECT_EQ(marked_cuts(traced.graph), std::vector<std::size_t>{4}) << to_text(traced.graph);
}

TEST(Trace, NamesConstants) {
  const TracedCase constants = case_named("constants");
  const TracedModel traced = trace(made(constants), constants.inputs(kTraced));
  ASSERT_EQ(traced.notes.size(), 4U);
  EXPECT_EQ(traced.notes[0], "constant: Float [6], used by aten::mul_; a copy of what the forward makes");
  EXPECT_EQ(traced.notes[1], "constant_1: Float [6], used by aten::mul");
}

TEST(Trace, SharesTheParametersOfTheModule) {
  const auto module = std::make_shared<torch::nn::LinearImpl>(2, 2);
  const TracedModel traced = trace(StageModel(module), {at::randn({3, 2})});
  EXPECT_TRUE(traced.state.at("weight").is_same(module->weight));
  const GraphModule graph(traced.graph, traced.state);
  EXPECT_TRUE(graph.named_parameters()["weight"].is_same(module->weight));
}

TEST(Trace, OfAFixedSizeIsForThatSize) {
  const auto model = [](const at::Tensor& x) { return x.view({x.size(0) * x.size(0), -1}); };
  const TracedModel traced = trace(StageModel(model), {at::randn({3, 3, 2})}, {.dynamic_batch = false});
  GraphModule graph(traced.graph, traced.state);
  EXPECT_EQ(graph.forward({at::ones({3, 3, 2})})[0].sizes(), at::IntArrayRef({9, 2}));
}

TEST(Trace, LeavesTheModelAndRandomNumbersAsTheyWere) {
  for (const TracedCase& each : traced_cases()) {
    SCOPED_TRACE(each.name);
    const StageModel model = made(each);
    std::map<std::string, at::Tensor> before;
    for (const auto& item : model.module->named_parameters())
      before[item.key()] = item.value().detach().clone();
    for (const auto& item : model.module->named_buffers()) before[item.key()] = item.value().clone();
    const at::Tensor random = at::detail::getDefaultCPUGenerator().get_state();
    const Values inputs = each.inputs(kTraced);
    Values inputs_before;
    for (const at::Tensor& input : inputs) inputs_before.push_back(input.defined() ? input.clone() : input);
    const auto expect_as_before = [&] {
      EXPECT_TRUE(at::equal(at::detail::getDefaultCPUGenerator().get_state(), random));
      for (const auto& item : model.module->named_parameters()) {
        EXPECT_TRUE(same_bits(item.value(), before.at(item.key()))) << item.key();
        EXPECT_FALSE(item.value().grad().defined()) << item.key();
      }
      for (const auto& item : model.module->named_buffers()) {
        EXPECT_TRUE(same_bits(item.value(), before.at(item.key()))) << item.key();
      }
      expect_same(inputs_before, inputs, "input");
    };
    trace(model, inputs, each.options);
    expect_as_before();
    StageModel failing = model;
    failing.forward = [&](const Values& values) {
      const Values outputs = model.forward(values);
      at::rand({3});
      outputs[0].sum().item<float>();
      return outputs;
    };
    EXPECT_THROW(trace(failing, inputs, each.options), Error);
    expect_as_before();
  }
}

}  // namespace
}  // namespace pipewright
