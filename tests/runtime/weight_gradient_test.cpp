#include <gtest/gtest.h>

#include <mutex>

#include "pipewright/runtime/random.h"
#include "pipewright/schedule/generate.h"
#include "runtime/compare.h"

namespace pipewright {
namespace {

/// What one microbatch's forward and backward leave for the weight gradient.
struct Saved {
  at::Tensor x;
  at::Tensor grad;
};

/// A linear layer whose weights autograd does not see.
class OwnWeights : public torch::nn::Module {
 public:
  OwnWeights() {
    weight = register_parameter("weight", numbers(1, {4, 4}));
    bias = register_parameter("bias", numbers(2, {4}));
    unused = register_parameter("unused", numbers(3, {2}));
  }
  at::Tensor forward(const at::Tensor& x) {
    saved_ = std::make_shared<Saved>();
    saved_->x = x.detach();
    at::Tensor y = x.mm(weight.detach()) + bias.detach();
    if (y.requires_grad()) y.register_hook([saved = saved_](const at::Tensor& grad) { saved->grad = grad; });
    return y;
  }
  std::shared_ptr<Saved> take() { return std::exchange(saved_, nullptr); }

  at::Tensor weight;
  at::Tensor bias;
  at::Tensor unused;

 private:
  std::shared_ptr<Saved> saved_;
};

/// The same layer as autograd sees it.
class PlainWeights : public Layer {
 public:
  PlainWeights() {
    weight_ = register_parameter("weight", torch::zeros({4, 4}));
    bias_ = register_parameter("bias", torch::zeros({4}));
    unused_ = register_parameter("unused", torch::zeros({2}));
  }
  Values forward(const Values& inputs) override { return {inputs.at(0).mm(weight_) + bias_}; }

 private:
  at::Tensor weight_;
  at::Tensor bias_;
  at::Tensor unused_;
};

Model plain_model() {
  Model model = dropout();
  model.layers = {dense(4, 4), [] { return std::make_shared<PlainWeights>(); }, dense(4, 4)};
  return model;
}

Schedule three_ranks(const char* name) {
  return make_schedule({.name = name, .ranks = 3, .microbatches = 3});
}

using Builder = std::function<std::function<WeightGradient()>(const std::shared_ptr<OwnWeights>&)>;

/// The plain model with a middle stage that computes its weight gradients itself.
Pipeline own_pipeline(const Schedule& schedule, const Builder& builder) {
  const StageFactory build = [&](Stage stage) {
    StageModel made = cut(plain_model(), 3)(stage);
    if (stage != 1) return made;
    const auto module = std::make_shared<OwnWeights>();
    {
      const torch::NoGradGuard no_grad;
      auto values = made.module->named_parameters();
      module->weight.copy_(values["l1.weight"]);
      module->bias.copy_(values["l1.bias"]);
    }
    StageModel own(module);
    own.global_name = [](const std::string& name) { return "l1." + name; };
    own.dw_builder = builder(module);
    return own;
  };
  return Pipeline(schedule, build, options_for(plain_model()));
}

WeightGradient gradient_of(const std::shared_ptr<Saved>& saved) {
  return [saved] { return Values{saved->x.t().mm(saved->grad), saved->grad.sum(0), at::Tensor()}; };
}

TEST(OwnWeightGradient, IsAddedToTheParameters) {
  const auto data = plain_model().data(3);
  for (const char* name : {"1F1B", "ZB-H1", "ZB-H2"}) {
    SCOPED_TRACE(name);
    Unsplit unsplit(plain_model());
    Pipeline pipeline = own_pipeline(three_ranks(name), [](const auto& module) {
      return [module] { return gradient_of(module->take()); };
    });
    for (int step = 0; step < 2; ++step) {
      expect_losses(pipeline.step(presplit(data)), unsplit.run(data));
      expect_gradients(pipeline, unsplit.gradients());
    }
  }
}

TEST(OwnWeightGradient, IsBuiltAfterEveryForwardAndCalledAtItsW) {
  std::mutex mutex;
  std::vector<std::string> built;
  std::vector<std::string> called;
  Pipeline pipeline = own_pipeline(three_ranks("ZB-H1"), [&](const auto& module) {
    return [&, module] {
      const std::lock_guard lock(mutex);
      built.push_back(to_text(*current_action()));
      return WeightGradient([&, saved = module->take()] {
        const std::lock_guard inner(mutex);
        called.push_back(to_text(*current_action()));
        return gradient_of(saved)();
      });
    };
  });
  pipeline.step(presplit(plain_model().data(3)));
  EXPECT_EQ(built, (std::vector<std::string>{"1F0", "1F1", "1F2"}));
  EXPECT_EQ(called, (std::vector<std::string>{"1W0", "1W1", "1W2"}));
  pipeline.eval(presplit(plain_model().data(3)));
  EXPECT_EQ(built.size(), 3U);
}

TEST(OwnWeightGradient, IsCalledInAWholeBackwardToo) {
  std::atomic<int> called = 0;
  Pipeline pipeline = own_pipeline(three_ranks("1F1B"), [&](const auto& module) {
    return [&, module] {
      return WeightGradient([&, saved = module->take()] {
        ++called;
        EXPECT_EQ(current_action()->kind, Kind::B);
        return gradient_of(saved)();
      });
    };
  });
  pipeline.step(presplit(plain_model().data(3)));
  EXPECT_EQ(called, 3);
}

/// What a step says whose weight gradient is made by `builder`.
StepError failure_of(const Builder& builder) {
  Pipeline pipeline = own_pipeline(three_ranks("ZB-H1"), builder);
  return failure_of(pipeline, plain_model().data(3));
}

TEST(OwnWeightGradient, ThatIsNoFunctionIsRefused) {
  const StepError error = failure_of([](const auto&) { return [] { return WeightGradient(); }; });
  EXPECT_EQ(error.action.stage, 1);
  EXPECT_NE(std::string(error.what()).find("dw_builder"), std::string::npos) << error.what();
}

StepError failure_of_values(const Values& values) {
  return failure_of([&](const auto&) { return [&] { return WeightGradient([&] { return values; }); }; });
}

TEST(OwnWeightGradient, OfTheWrongNumberIsRefused) {
  for (const std::size_t number : {0, 2, 4}) {
    const StepError error = failure_of_values(Values(number));
    EXPECT_EQ(to_text(error.action), "1W0");
    EXPECT_NE(std::string(error.what()).find(std::to_string(number)), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find('3'), std::string::npos) << error.what();
  }
}

TEST(OwnWeightGradient, OfTheWrongShapeIsRefused) {
  const StepError error = failure_of_values({torch::zeros({4, 4}), torch::zeros({4, 1}), at::Tensor()});
  EXPECT_EQ(to_text(error.action), "1W0");
  EXPECT_NE(std::string(error.what()).find("[4, 1]"), std::string::npos) << error.what();
  EXPECT_NE(std::string(error.what()).find("[4]"), std::string::npos) << error.what();
}

TEST(OwnWeightGradient, ThatThrowsIsNamed) {
  const StepError error = failure_of([](const auto&) {
    return [] { return WeightGradient([]() -> Values { throw std::runtime_error("no gradient today"); }); };
  });
  EXPECT_EQ(to_text(error.action), "1W0");
  EXPECT_NE(std::string(error.what()).find("no gradient today"), std::string::npos);
}

}  // namespace
}  // namespace pipewright
