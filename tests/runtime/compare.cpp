#include "runtime/compare.h"

#include <sstream>

namespace pipewright {
namespace {

/// Started by a launcher, the tests' pipelines are spread over its processes.
std::shared_ptr<World>& the_world() {
  static std::shared_ptr<World> world;
  return world;
}
class JoinedWorld : public testing::Environment {
 public:
  void SetUp() override {
    if (const auto options = world_from_environment()) the_world() = std::make_shared<World>(*options);
  }
  void TearDown() override { the_world().reset(); }
};
const auto* const kJoinedWorld = testing::AddGlobalTestEnvironment(new JoinedWorld);

/// On tensors of a few numbers, the threads of an operator only wait for each other.
class OneThreadAnOperator : public testing::Environment {
 public:
  void SetUp() override { at::set_num_threads(1); }
};
const auto* const kOneThreadAnOperator = testing::AddGlobalTestEnvironment(new OneThreadAnOperator);

}  // namespace

Unsplit::Unsplit(const Model& model)
    : model_(model), module_(std::make_shared<Slice>(model, 0, model.layers.size())) {
  const torch::NoGradGuard no_grad;
  auto parameters = module_->named_parameters();
  for (const auto& group : model_.tied) {
    for (const std::string& name : group) parameters[name].copy_(parameters[group.front()]);
  }
}

Unsplit::Result Unsplit::run(const std::vector<MicrobatchValues>& microbatches,
                             std::optional<double> denominator, int accumulation) {
  const double divisor = denominator.value_or(static_cast<double>(microbatches.size()));
  Result result{torch::zeros({}), {}, {}};
  for (std::size_t k = 0; k < microbatches.size(); ++k) {
    announce_microbatch(static_cast<Microbatch>(k));
    result.outputs.push_back(module_->forward(microbatches[k].inputs));
    const at::Tensor loss = model_.loss(result.outputs.back(), microbatches[k].targets);
    if (loss.requires_grad()) (loss / (divisor * accumulation)).backward();
    result.losses.push_back(loss.detach());
    result.loss = result.loss + loss.detach() / divisor;
  }
  return result;
}

Gradients Unsplit::gradients() const {
  Gradients gradients;
  for (const auto& item : module_->named_parameters()) gradients[item.key()] = item.value().grad();
  for (const auto& group : model_.tied) {
    at::Tensor sum;
    for (const std::string& name : group) {
      const at::Tensor& gradient = gradients[name];
      if (gradient.defined()) sum = sum.defined() ? sum + gradient : gradient;
    }
    for (const std::string& name : group) gradients[name] = sum;
  }
  return gradients;
}

testing::AssertionResult close(const at::Tensor& actual, const at::Tensor& expected) {
  if (!actual.defined() && !expected.defined()) return testing::AssertionSuccess();
  if (actual.defined() != expected.defined()) {
    return testing::AssertionFailure() << (actual.defined() ? "is there" : "is absent");
  }
  if (actual.sizes() != expected.sizes() || actual.dtype() != expected.dtype()) {
    return testing::AssertionFailure() << to_text(actual) << ", expected " << to_text(expected);
  }
  if (expected.numel() == 0) return testing::AssertionSuccess();
  const auto plain = [](const at::Tensor& x) {
    return (x.is_sparse() ? x.detach().to_dense() : x.detach()).to(at::kCPU, at::kDouble);
  };
  const at::Tensor a = plain(actual);
  const at::Tensor b = plain(expected);
  const double largest = b.abs().max().item<double>();
  const double difference = (a - b).abs().max().item<double>();
  if (difference <= 1e-5 * largest + 1e-9) return testing::AssertionSuccess();
  std::ostringstream values;
  values << "off by " << difference << " of " << largest;
  constexpr int kFew = 100;
  if (a.numel() <= kFew) values << ":\n" << a << "\nexpected\n" << b;
  return testing::AssertionFailure() << values.str();
}

void expect_losses(const StepResult& actual, const Unsplit::Result& expected) {
  EXPECT_TRUE(close(actual.loss, expected.loss)) << "loss";
  ASSERT_EQ(actual.losses.size(), expected.losses.size());
  for (std::size_t k = 0; k < expected.losses.size(); ++k) {
    EXPECT_TRUE(close(actual.losses[k], expected.losses[k])) << "loss of microbatch " << k;
  }
}

void expect_gradients(const Pipeline& pipeline, const Gradients& expected) {
  Gradients unseen = expected;
  for (const auto& [name, parameter] : pipeline.named_parameters()) {
    ASSERT_EQ(unseen.count(name), 1U) << name << " is not of the model, or comes twice";
    EXPECT_TRUE(close(parameter.grad(), unseen.at(name))) << "gradient of " << name;
    unseen.erase(name);
  }
  if (test_world()) {
    std::string own;
    for (const auto& [name, parameter] : pipeline.named_parameters()) own += name + "\n";
    for (const std::string& list : test_world()->all_gather(own)) {
      std::istringstream names(list);
      for (std::string name; std::getline(names, name);) unseen.erase(name);
    }
  }
  for (const auto& [name, gradient] : unseen) ADD_FAILURE() << name << " is missing";
}

PipelineOptions options_for(const Model& model) {
  PipelineOptions options;
  options.loss = model.loss;
  options.tied = model.tied;
  options.timeout = std::chrono::seconds(30);
  return options;
}

Pipeline make_pipeline(const Model& model, const Schedule& schedule) {
  return Pipeline(schedule, cut(model, schedule.stage_count()), in_world(options_for(model), schedule));
}

Pipeline make_local_pipeline(const Model& model, const Schedule& schedule) {
  return Pipeline(schedule, cut(model, schedule.stage_count()), options_for(model));
}

std::shared_ptr<World> test_world() { return the_world(); }

PipelineOptions in_world(PipelineOptions options, const Schedule& schedule) {
  options.world = test_world();
  if (!options.world) return options;
  for (Rank rank = 0; rank < schedule.rank_count(); ++rank) {
    options.processes.push_back(rank % options.world->size());
  }
  return options;
}

Batch presplit(std::vector<MicrobatchValues> microbatches) {
  Batch batch;
  batch.microbatches = std::move(microbatches);
  return batch;
}

Batch joined(const std::vector<MicrobatchValues>& microbatches) {
  Batch batch;
  std::vector<Values> inputs;
  std::vector<Values> targets;
  for (const MicrobatchValues& each : microbatches) {
    inputs.push_back(each.inputs);
    targets.push_back(each.targets);
  }
  const auto join = [](const std::vector<Values>& all) {
    Values values;
    for (std::size_t slot = 0; slot < all.front().size(); ++slot) {
      std::vector<at::Tensor> parts;
      for (const Values& each : all) parts.push_back(each[slot]);
      values.push_back(torch::cat(parts));
    }
    return values;
  };
  batch.inputs = join(inputs);
  batch.targets = join(targets);
  return batch;
}

StepError failure_of(Pipeline& pipeline, const std::vector<MicrobatchValues>& microbatches) {
  try {
    pipeline.step(presplit(microbatches));
  } catch (const StepError& error) {
    return error;
  }
  ADD_FAILURE() << "the step succeeded";
  return {-1, -1, Action{}, "", nullptr};
}

void expect_parity(const Model& model, const Schedule& schedule) {
  expect_parity(model, schedule, options_for(model));
}

void expect_parity(const Model& model, const Schedule& schedule, PipelineOptions options) {
  const auto data = model.data(schedule.microbatches);
  Unsplit unsplit(model);
  const auto expected = unsplit.run(data);
  Pipeline pipeline(schedule, cut(model, schedule.stage_count()), in_world(std::move(options), schedule));
  expect_losses(pipeline.step(presplit(data)), expected);
  expect_gradients(pipeline, unsplit.gradients());
}

}  // namespace pipewright
