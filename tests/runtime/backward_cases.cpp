#include "runtime/backward_cases.h"

#include <map>
#include <utility>

namespace pipewright {
namespace {

using Parameters = std::map<std::string, at::Tensor>;
using Sizes = std::map<std::string, std::vector<std::int64_t>>;

/// A layer of parameters of these sizes and a function that uses them.
class Graph : public Layer {
 public:
  using Body = std::function<Values(const Values&, const Parameters&)>;
  Graph(const Sizes& sizes, Body body) : body_(std::move(body)) {
    for (const auto& [name, size] : sizes) {
      parameters_[name] = register_parameter(name, torch::zeros(size));
    }
  }
  Values forward(const Values& inputs) override { return body_(inputs, parameters_); }

 private:
  Body body_;
  Parameters parameters_;
};

LayerFactory graph(Sizes sizes, Graph::Body body) {
  return [=] { return std::make_shared<Graph>(sizes, body); };
}

class ConvolutionAndBatchNorm : public Layer {
 public:
  // Without a bias before the norm, whose gradient would be nothing but rounding.
  ConvolutionAndBatchNorm()
      : first_(register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 3, 3).bias(false)))),
        norm_(register_module("norm", torch::nn::BatchNorm2d(3))),
        second_(register_module("second", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 2, 2)))) {}
  Values forward(const Values& inputs) override {
    return {second_->forward(torch::relu(norm_->forward(first_->forward(inputs.at(0)))))};
  }

 private:
  torch::nn::Conv2d first_;
  torch::nn::BatchNorm2d norm_;
  torch::nn::Conv2d second_;
};

class Lstm : public Layer {
 public:
  Lstm() : lstm_(register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(4, 3).num_layers(2)))) {}
  Values forward(const Values& inputs) override { return {std::get<0>(lstm_->forward(inputs.at(0)))}; }

 private:
  torch::nn::LSTM lstm_;
};

class SparseEmbedding : public Layer {
 public:
  SparseEmbedding()
      : table_(
            register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 4).sparse(true)))) {}
  Values forward(const Values& inputs) override { return {inputs.at(0) + table_->forward(inputs.at(1))}; }

 private:
  torch::nn::Embedding table_;
};

std::function<Values(Microbatch)> sized(std::vector<std::int64_t> sizes) {
  return [=](Microbatch k) { return Values{numbers(static_cast<std::uint64_t>(k), sizes)}; };
}

Values rows_and_indices(Microbatch k) {
  return {numbers(static_cast<std::uint64_t>(k), {3, 4}),
          torch::arange(3, test_device()).add(k).remainder(5)};
}

Values two_inputs(Microbatch k) {
  const auto seed = static_cast<std::uint64_t>(k);
  return {numbers(seed, {3, 4}), numbers(seed + 50, {3, 4})};
}

std::vector<BackwardCase> modules() {
  using namespace torch::nn;
  return {
      {"Linear", wrap<Linear>(4, 5), sized({3, 4})},
      {"LinearToOneNumber", wrap<Linear>(4, 1), sized({3, 4})},
      {"LinearFromOneNumber", wrap<Linear>(1, 4), sized({3, 1})},
      {"LinearOfOneRow", wrap<Linear>(4, 5), sized({1, 4})},
      {"LinearOfThreeDimensions", wrap<Linear>(4, 5), sized({2, 3, 4})},
      {"ConvolutionAndBatchNorm", [] { return std::make_shared<ConvolutionAndBatchNorm>(); },
       sized({2, 2, 5, 5})},
      {"TransposedConvolution", wrap<ConvTranspose1d>(ConvTranspose1dOptions(2, 3, 2)), sized({2, 2, 5})},
      {"LayerNorm", wrap<LayerNorm>(LayerNormOptions({4})), sized({3, 4})},
      {"GroupNorm", wrap<GroupNorm>(GroupNormOptions(2, 4)), sized({3, 4})},
      {"PReLU", wrap<PReLU>(PReLUOptions().num_parameters(4)), sized({3, 4})},
      {"Lstm", [] { return std::make_shared<Lstm>(); }, sized({5, 2, 4})},
      {"SparseEmbedding", [] { return std::make_shared<SparseEmbedding>(); }, rows_and_indices},
      {"Embedding",
       graph({{"table", {5, 4}}},
             [](const Values& in, const Parameters& p) {
               return Values{in.at(0) + torch::embedding(p.at("table"), in.at(1))};
             }),
       rows_and_indices},
      {"Attention",
       graph({{"qkv", {4, 12}}, {"out", {4, 4}}},
             [](const Values& in, const Parameters& p) {
               const auto parts = in.at(0).matmul(p.at("qkv")).chunk(3, -1);
               return Values{at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0,
                                                              /*is_causal=*/true)
                                 .matmul(p.at("out"))};
             }),
       sized({2, 5, 4})},
  };
}

std::vector<BackwardCase> shared_weights() {
  const Sizes square{{"w", {4, 4}}};
  return {
      {"WeightUsedTwice",
       graph(square, [](const Values& in,
                        const Parameters& p) { return Values{in.at(0).mm(p.at("w")).tanh().mm(p.at("w"))}; }),
       sized({3, 4})},
      {"WeightUsedInALoop",
       graph(square,
             [](const Values& in, const Parameters& p) {
               at::Tensor x = in.at(0);
               for (int turn = 0; turn < 5; ++turn) x = x.mm(p.at("w")).tanh() + in.at(0);
               return Values{x};
             }),
       sized({3, 4})},
      {"WeightUsedByTwoOperatorsOnTheInputPath",
       graph(square,
             [](const Values& in, const Parameters& p) {
               const at::Tensor& w = p.at("w");
               return Values{in.at(0).mm(w) + in.at(0) * w.sum()};
             }),
       sized({3, 4})},
      {"NormedWeight",
       graph({{"g", {4, 1}}, {"v", {4, 4}}},
             [](const Values& in, const Parameters& p) {
               const at::Tensor& v = p.at("v");
               return Values{in.at(0).mm(p.at("g") * v / v.norm(2, 1, true))};
             }),
       sized({3, 4})},
      {"WeightMadeOfWeights",
       graph({{"a", {4, 3}}, {"b", {3, 4}}},
             [](const Values& in, const Parameters& p) {
               return Values{in.at(0).mm(p.at("a").tanh().mm(p.at("b"))).relu()};
             }),
       sized({3, 4})},
      {"WeightOnTheLeft",
       graph(square, [](const Values& in, const Parameters& p) { return Values{p.at("w").mm(in.at(0))}; }),
       sized({4, 3})},
      {"ScaledProduct",
       graph({{"w", {4, 5}}, {"b", {5}}},
             [](const Values& in, const Parameters& p) {
               return Values{at::addmm(p.at("b"), in.at(0), p.at("w"), 0.5, -2)};
             }),
       sized({3, 4})},
      {"ProductAddedToAMatrix",
       graph({{"w", {4, 4}}, {"b", {3, 4}}, {"row", {1, 4}}},
             [](const Values& in, const Parameters& p) {
               return Values{at::addmm(p.at("b"), at::addmm(p.at("row"), in.at(0), p.at("w")), p.at("w"))};
             }),
       sized({3, 4})},
      {"WeightAndItsTranspose",
       graph(square,
             [](const Values& in, const Parameters& p) {
               return Values{in.at(0).mm(p.at("w")).relu().mm(p.at("w").t())};
             }),
       sized({3, 4})},
      {"WeightAddedThroughAView",
       graph({{"w", {12}}},
             [](const Values& in, const Parameters& p) { return Values{in.at(0) + p.at("w").view({3, 4})}; }),
       sized({3, 4})},
      {"OutputIsAWeight",
       graph(square,
             [](const Values& in, const Parameters& p) { return Values{in.at(0).mm(p.at("w")), p.at("w")}; }),
       sized({3, 4})},
      {"UnusedWeight",
       graph({{"w", {4, 4}}, {"unused", {2}}},
             [](const Values& in, const Parameters& p) { return Values{in.at(0).mm(p.at("w"))}; }),
       sized({3, 4})},
      {"NoWeight", graph({}, [](const Values& in, const Parameters&) { return Values{in.at(0).sin()}; }),
       sized({3, 4})},
  };
}

std::vector<BackwardCase> ways() {
  const Sizes square{{"w", {4, 4}}};
  return {
      {"OutputIsInput", graph(square, [](const Values& in, const Parameters&) { return in; }), sized({3, 4})},
      {"OutputIsInputAndMore",
       graph(square, [](const Values& in,
                        const Parameters& p) { return Values{in.at(0), in.at(0).mm(p.at("w")), in.at(0)}; }),
       sized({3, 4})},
      {"SeveralOutputsOfOneOperator",
       graph({{"w", {4, 8}}}, [](const Values& in,
                                 const Parameters& p) { return Values(in.at(0).mm(p.at("w")).chunk(2, 1)); }),
       sized({3, 4})},
      {"PartsOfAProduct",
       graph(square,
             [](const Values& in, const Parameters& p) {
               const at::Tensor x = in.at(0).mm(p.at("w"));
               return Values{x.select(0, 0) * x.select(0, -1), x.slice(0, 1, 3) * x.slice(1, 0, 4, 2).sum()};
             }),
       sized({5, 4})},
      {"PartsOfAPermutation",
       graph({{"w", {4, 12}}},
             [](const Values& in, const Parameters& p) {
               const at::Tensor x =
                   in.at(0).matmul(p.at("w")).view({2, 5, 3, 2, 2}).permute({2, 0, -2, 1, 4});
               return Values{x[0] * x[1].sin() + x[2], x[1]};
             }),
       sized({2, 5, 4})},
      {"EveryPartOfAPermutation",
       graph({{"w", {4, 12}}},
             [](const Values& in, const Parameters& p) {
               const at::Tensor x = in.at(0).matmul(p.at("w")).view({2, 5, 3, 2, 2}).permute({2, 0, 3, 1, 4});
               return Values{x[2] * x[0].sin() + x[-2]};
             }),
       sized({2, 5, 4})},
      {"EverySliceOfAProduct",
       graph({{"w", {4, 6}}},
             [](const Values& in, const Parameters& p) {
               const at::Tensor x = in.at(0).mm(p.at("w"));
               return Values{x.slice(1, -4, 100) * x.slice(1, 0, 1) + x.slice(1, 1, 2).sin()};
             }),
       sized({5, 4})},
      {"EveryPartAndTheWhole",
       graph(square,
             [](const Values& in, const Parameters& p) {
               const at::Tensor x = in.at(0).mm(p.at("w"));
               const at::Tensor y = x.slice(0, 0, 5).sin();
               return Values{x.slice(0, 2, 5) * x.sum(), y.slice(0, 0, 2) * x.slice(0, 0, 2), y.select(1, 0)};
             }),
       sized({5, 4})},
      {"SplitOfTheInput",
       graph(square,
             [](const Values& in, const Parameters& p) {
               const auto parts = in.at(0).split(2, 1);
               return Values{torch::cat({parts[1], parts[0]}, 1).mm(p.at("w")), parts[1]};
             }),
       sized({3, 4})},
      {"NoPathFromSomeOutputToSomeInput",
       graph({{"w", {4, 4}}, {"alone", {4}}},
             [](const Values& in, const Parameters& p) {
               return Values{in.at(0).mm(p.at("w")), p.at("alone").exp().expand({3, 4}), in.at(1).detach()};
             }),
       two_inputs},
      {"TwoInputsInOneProduct",
       graph({}, [](const Values& in,
                    const Parameters&) { return Values{in.at(0).mm(in.at(1).t()), in.at(1).sin()}; }),
       two_inputs},
      {"DetachedBranch",
       graph(square,
             [](const Values& in, const Parameters& p) {
               return Values{in.at(0).detach().mm(p.at("w")).tanh() + in.at(0)};
             }),
       sized({3, 4})},
      {"Views",
       graph(square,
             [](const Values& in, const Parameters& p) {
               const at::Tensor x = in.at(0).view({4, 3}).t().slice(1, 1, 3).repeat({1, 2});
               return Values{x.mm(p.at("w").view({2, 8}).reshape({4, 4})).unsqueeze(0).expand({2, 3, 4}),
                             in.at(0).select(0, 1)};
             }),
       sized({3, 4})},
      {"OtherDtype",
       graph(square,
             [](const Values& in, const Parameters& p) {
               return Values{in.at(0).to(at::kDouble).mm(p.at("w").to(at::kDouble))};
             }),
       sized({3, 4})},
  };
}

std::vector<BackwardCase> unusual() {
  const Sizes square{{"w", {4, 4}}};
  const auto doubled = [](const at::Tensor& grad) { return grad * 2; };
  const auto hook = [=](const at::Tensor& x) {
    if (x.requires_grad()) x.register_hook(doubled);
  };
  return {
      {"CustomFunction", counting_product(), sized({3, 4})},
      {"InPlace",
       graph(square,
             [](const Values& in, const Parameters& p) {
               at::Tensor x = in.at(0).mm(p.at("w"));
               x.mul_(2);
               x.slice(1, 0, 2).add_(x.slice(1, 2, 4).clone());
               x.relu_();
               return Values{x};
             }),
       sized({3, 4})},
      {"InPlaceOnTheInput",
       graph(square,
             [](const Values& in, const Parameters& p) {
               at::Tensor x = in.at(0);
               x.mul_(3);
               return Values{x.mm(p.at("w")), x};
             }),
       sized({3, 4}), true},
      {"TensorHooks",
       graph(square,
             [=](const Values& in, const Parameters& p) {
               const at::Tensor x = in.at(0).sin();
               const at::Tensor y = x.mm(p.at("w"));
               hook(x);
               hook(y);
               return Values{y.tanh()};
             }),
       sized({3, 4})},
      {"HookOnTheOutput",
       graph(square,
             [=](const Values& in, const Parameters& p) {
               const at::Tensor y = in.at(0).mm(p.at("w"));
               hook(y);
               return Values{y};
             }),
       sized({3, 4})},
      {"HookOnTheInput",
       graph(square,
             [=](const Values& in, const Parameters& p) {
               const at::Tensor x = in.at(0);
               hook(x);
               return Values{x.mm(p.at("w"))};
             }),
       sized({3, 4})},
      {"HookOnTheWeight",
       [=] {
         auto layer = graph(
             square, [](const Values& in, const Parameters& p) { return Values{in.at(0).mm(p.at("w"))}; })();
         layer->named_parameters()["w"].register_hook(doubled);
         return layer;
       },
       sized({3, 4})},
  };
}

class Probe : public Layer {
 public:
  explicit Probe(const Values& example) {
    for (std::size_t slot = 0; slot < example.size(); ++slot) {
      if (!example[slot].is_floating_point()) continue;
      const std::string number = std::to_string(slot);
      factors_[slot] = register_parameter("factor" + number, torch::zeros_like(example[slot]));
      shifts_[slot] = register_parameter("shift" + number, torch::zeros_like(example[slot]));
    }
  }
  Values forward(const Values& inputs) override {
    Values outputs = inputs;
    for (const auto& [slot, factor] : factors_) outputs[slot] = inputs[slot] * factor + shifts_[slot];
    return outputs;
  }

 private:
  std::map<std::size_t, at::Tensor> factors_;
  std::map<std::size_t, at::Tensor> shifts_;
};

at::Tensor weighted_sum(const Values& outputs, const Values& /*targets*/) {
  at::Tensor sum = torch::zeros({});
  for (const at::Tensor& output : outputs) {
    if (output.is_floating_point()) sum = sum + (output * numbers(7, output.sizes())).sum();
  }
  return sum;
}

}  // namespace

std::atomic<int> CountingProduct::input_gradients = 0;
std::atomic<int> CountingProduct::weight_gradients = 0;

at::Tensor CountingProduct::forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                                    const at::Tensor& weight) {
  context->save_for_backward({x, weight});
  return x.mm(weight);
}

torch::autograd::variable_list CountingProduct::backward(torch::autograd::AutogradContext* context,
                                                         torch::autograd::variable_list grads) {
  const auto saved = context->get_saved_variables();
  torch::autograd::variable_list results(2);
  if (context->needs_input_grad(0)) {
    ++input_gradients;
    results[0] = grads[0].mm(saved[1].t());
  }
  if (context->needs_input_grad(1)) {
    ++weight_gradients;
    results[1] = saved[0].t().mm(grads[0]);
  }
  return results;
}

LayerFactory counting_product() {
  return graph({{"w", {4, 4}}}, [](const Values& in, const Parameters& p) {
    return Values{CountingProduct::apply(in.at(0), p.at("w"))};
  });
}

std::vector<BackwardCase> backward_cases() {
  std::vector<BackwardCase> all;
  for (auto part : {modules(), shared_weights(), ways(), unusual()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

LayerFactory probe(const Values& example) {
  return [=] { return std::make_shared<Probe>(example); };
}

Model case_model(const BackwardCase& each, bool probe_before, bool probe_after) {
  Model model{each.name, {}, weighted_sum, {}};
  const Values inputs = each.inputs(0);
  if (probe_before) model.layers.push_back(probe(inputs));
  model.layers.push_back(each.layer);
  if (probe_after) {
    const torch::NoGradGuard no_grad;
    Values clones;
    for (const at::Tensor& input : inputs) clones.push_back(input.clone());
    const std::shared_ptr<Layer> layer = each.layer();
    layer->to(test_device());
    model.layers.push_back(probe(layer->forward(clones)));
  }
  model.data = [inputs = each.inputs](Microbatch count) {
    std::vector<MicrobatchValues> data;
    for (Microbatch k = 0; k < count; ++k) data.push_back({inputs(k), {}, {}});
    return data;
  };
  return model;
}

}  // namespace pipewright
