#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "pipewright/base/error.h"
#include "pipewright/frontend/trace.h"

namespace pipewright {
namespace {

using at::Tensor;

/// What tracing says against a model of one input.
std::string refusal(std::function<Tensor(const Tensor&)> forward, const TraceOptions& options = {},
                    const Tensor& sample = at::randn({4, 6}, at::make_generator<at::CPUGeneratorImpl>(5))) {
  const auto layer = std::make_shared<torch::nn::LinearImpl>(6, 6);
  const auto model = [layer, forward](const Tensor& x) { return layer->forward(forward(x * 2)); };
  try {
    trace(StageModel(model, layer), {sample}, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "traced";
}

#define EXPECT_REFUSED(text, ...)                                      \
  do {                                                                 \
    const std::string said = refusal(__VA_ARGS__);                     \
    EXPECT_NE(said.find(text), std::string::npos) << "said: " << said; \
  } while (false)

struct Double : torch::autograd::Function<Double> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x * 2; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list grads) {
    return {grads[0] * 3};
  }
};

struct Identity : torch::autograd::Function<Identity> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.view_as(x); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list grads) {
    return {-grads[0]};
  }
};

TEST(TraceRefusal, NamesDataThatTheProgramReads) {
  EXPECT_REFUSED("aten::item", [](const Tensor& x) { return x * x.sum().item<float>(); });
  EXPECT_REFUSED("aten::is_nonzero", [](const Tensor& x) { return x.sum().is_nonzero() ? x : -x; });
  EXPECT_REFUSED("aten::equal", [](const Tensor& x) { return x.equal(x.relu()) ? x : -x; });
  EXPECT_REFUSED("aten::allclose", [](const Tensor& x) { return x.allclose(x.relu()) ? x : -x; });
}

TEST(TraceRefusal, IsRepeatedWhereTheModelCatchesIt) {
  EXPECT_REFUSED("aten::item", [](const Tensor& x) {
    try {
      return x * x.sum().item<float>();
    } catch (const std::exception&) {
      return x;
    }
  });
}

TEST(TraceRefusal, NamesCustomAutogradFunctions) {
  EXPECT_REFUSED("Double", [](const Tensor& x) { return Double::apply(x); });
  EXPECT_REFUSED("Identity", [](const Tensor& x) { return Identity::apply(x); });
  const auto alone = [](const Tensor& x) { return Double::apply(x); };
  EXPECT_THROW(trace(StageModel(alone), {at::randn({3})}), Error);
}

TEST(TraceRefusal, NamesWhatChangesGradientsAndIsNoOperator) {
  EXPECT_REFUSED("hook", [](const Tensor& x) {
    const Tensor y = x.relu();
    y.register_hook([](const Tensor& gradient) { return gradient * 2; });
    return y;
  });
  EXPECT_REFUSED("requires_grad_", [](const Tensor& x) { return x.detach().requires_grad_() * 2; });
  EXPECT_REFUSED("set_data", [](const Tensor& x) {
    Tensor y = x.relu();
    y.set_data(at::zeros_like(y));
    return y;
  });
  EXPECT_REFUSED("backward", [](const Tensor& x) {
    return x * torch::autograd::grad({x.square().sum()}, {x}, {}, true)[0];
  });
  EXPECT_REFUSED("backward", [](const Tensor& x) {
    x.square().sum().backward({}, true);
    return x;
  });
}

TEST(TraceRefusal, SeesDecisionsByTheData) {
  EXPECT_REFUSED("the data",
                 [](const Tensor& x) { return x.data_ptr<float>()[0] > 0 ? x.relu() : x.tanh(); });
  EXPECT_REFUSED("the data", [](const Tensor& x) { return x * (x.data_ptr<float>()[0] > 0 ? 2.0 : 3.0); });
  // The number of rows of a result is data, too, where it is no longer the size of what is at hand.
  EXPECT_REFUSED("the data",
                 [](const Tensor& x) { return x + at::zeros({(x > 0).nonzero().size(0)}).sum(); });
}

TEST(TraceRefusal, SeesDependenceOnTheBatchThatCannotBeExpressed) {
  EXPECT_REFUSED("aten::zeros is 16 with a batch of 4",
                 [](const Tensor& x) { return x + at::zeros({x.size(0) * x.size(0)}).sum(); });
  EXPECT_REFUSED("cannot be expressed",
                 [](const Tensor& x) { return x + at::zeros({(x.size(0) + 15) / 16 * 16}).sum(); });
  EXPECT_REFUSED("the argument 'other' of aten::mul depends on the batch",
                 [](const Tensor& x) { return x * (1.0 / std::sqrt(static_cast<double>(x.size(0)))); });
  EXPECT_REFUSED("what the model calls depends on the batch", [](const Tensor& x) {
    Tensor sum = at::zeros({6});
    for (std::int64_t row = 0; row < x.size(0); ++row) sum = sum + x[row];
    return x + sum;
  });
  EXPECT_REFUSED("what the model calls depends on the batch",
                 [](const Tensor& x) { return x.size(0) % 2 == 0 ? x.relu() : x.tanh(); });
  EXPECT_REFUSED("what aten::unbind gives depends on the batch",
                 [](const Tensor& x) { return x + x.unbind(0)[0]; });
  EXPECT_REFUSED("the model fails with a batch of 5",
                 [](const Tensor& x) { return x.view({x.size(0) / 2, 2, 6}).flatten(0, 1); });
  EXPECT_REFUSED("contents change", [](const Tensor& x) {
    return x + torch::tensor(std::vector<float>(6, static_cast<float>(x.size(0))));
  });
}

TEST(TraceRefusal, SeesMemoryThatIsNoBuffer) {
  const auto memory = std::make_shared<Tensor>(at::zeros({6}));
  EXPECT_REFUSED("contents change from call to call", [memory](const Tensor& x) {
    *memory = (*memory + x.detach().mean(0)).detach();
    return x + *memory;
  });
  const auto calls = std::make_shared<int>(0);
  EXPECT_REFUSED("earlier calls", [calls](const Tensor& x) { return x * static_cast<double>(++*calls); });
}

TEST(TraceRefusal, SeesConstantsThatComeFromParameters) {
  const auto layer = std::make_shared<torch::nn::LinearImpl>(6, 6);
  const Tensor alias = layer->weight.detach();
  const auto refusal_of = [&](const std::function<Tensor(const Tensor&)>& forward) -> std::string {
    try {
      trace(StageModel([forward](const Tensor& x) { return forward(x); }, layer), {at::randn({4, 6})});
    } catch (const Error& error) {
      return error.what();
    }
    return "traced";
  };
  EXPECT_NE(refusal_of([&](const Tensor& x) { return x.mm(alias); }).find("if it comes from a parameter"),
            std::string::npos);
  EXPECT_NE(refusal_of([&](const Tensor& x) {
              const float* weights = layer->weight.data_ptr<float>();
              return x * torch::tensor(std::vector<float>(weights, weights + 6));
            }).find("if it comes from a parameter"),
            std::string::npos);
}

TEST(TraceRefusal, SeesMemoryThatIsSharedSecretly) {
  EXPECT_REFUSED("shared with its result", [](const Tensor& x) {
    const Tensor flat = at::atleast_3d(x.relu());
    flat.mul_(2);
    return flat.squeeze(2);
  });
}

TEST(TraceRefusal, SeesWhatIsNoOperator) {
  EXPECT_REFUSED("the graph's outputs differ", [](const Tensor& x) {
    torch::manual_seed(1);
    return x + at::rand({6});
  });

  // The forward fills a tensor by itself. One that it has just made is a constant; one with contents is not
  // seen, but the graph's outputs are.
  EXPECT_REFUSED("the graph's outputs differ", [](const Tensor& x) {
    Tensor mask = at::zeros({6});
    mask.accessor<float, 1>()[2] = 1;
    return x * mask;
  });
  EXPECT_REFUSED("contents change", [](const Tensor& x) {
    Tensor copy = at::empty({6});
    std::copy_n(x.data_ptr<float>(), 6, copy.data_ptr<float>());
    return x * copy;
  });
  EXPECT_REFUSED("inference mode", [](const Tensor& x) {
    const c10::InferenceMode inference;
    return x.clone();
  });
}

TEST(TraceRefusal, SeesStateThatGetsAnotherShape) {
  const auto held = std::make_shared<Tensor>(at::zeros({6}));
  EXPECT_REFUSED("aten::resize_ gives a parameter, buffer or constant another shape",
                 [held](const Tensor& x) {
                   held->resize_({x.size(0), 6});
                   return x + held->zero_();
                 });
  EXPECT_EQ(held->sizes(), at::IntArrayRef({6}));
}

TEST(TraceRefusal, SaysWhatOptionsDoNotFit) {
  const StageModel model([](const Tensor& x) { return x; });
  EXPECT_THROW(trace(model, {at::ones({3})}, {.batch_dims = {{0, 0}}}), ArgumentError);
  EXPECT_THROW(trace(model, {at::ones({3})}, {.batch_dims = {{1}}}), ArgumentError);
  EXPECT_THROW(trace(model, {at::ones({0})}), ArgumentError);
}

TEST(TraceRefusal, LeavesErrorsOfTheModelAlone) {
  const StageModel model([](const Tensor& x) { return x.view({5}); });
  EXPECT_THROW(trace(model, {at::ones({3})}), c10::Error);
}

}  // namespace
}  // namespace pipewright
