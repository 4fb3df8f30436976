#include "frontend/traced_models.h"

#include <ATen/autocast_mode.h>

#include "gpt/gpt.h"
#include "pipewright/frontend/pipe_split.h"

namespace pipewright {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;
using at::Tensor;
using at::indexing::None;
using at::indexing::Slice;

Tensor numbers(at::IntArrayRef sizes) {
  return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(5));
}
Tensor tokens(std::int64_t batch, std::int64_t length, std::int64_t vocab) {
  return at::randint(0, vocab, {batch, length}, at::make_generator<at::CPUGeneratorImpl>(3), at::kLong);
}

/// A model of one linear layer before and one behind what is tested.
struct Between : nn::Module {
  explicit Between(std::int64_t width = 6)
      : a(register_module("a", nn::Linear(width, width))),
        b(register_module("b", nn::Linear(width, width))) {}
  nn::Linear a;
  nn::Linear b;
};

struct InPlace : Between {
  Tensor forward(Tensor x) {
    x = a(x);
    x.neg_();
    x += 1;
    x.select(1, 0).mul_(2);
    x.index_put_({Slice(), 1}, 3.0);
    Tensor y = at::zeros_like(x);
    y.narrow(1, 0, 3).copy_(x.narrow(1, 3, 3));
    Tensor z = at::empty({0});
    at::add_out(z, y.detach(), x.detach());
    x.unsqueeze_(1).squeeze_(1);
    return b(x) + y + z;
  }
};

struct InPlaceOnInput : Between {
  Tensor forward(Tensor x) {
    x.mul_(2);
    return b(a(x).tanh_());
  }
};

struct Views : Between {
  Tensor forward(const Tensor& x) {
    const Tensor h = a(x).view({x.size(0), 2, 3});
    const auto parts = h.split(1, 1);
    const auto halves = h.chunk(2, 1);
    const auto rows = h.unbind(1);
    const Tensor wide = rows[0].unsqueeze(1).expand({x.size(0), 2, 3});
    const Tensor sum = (parts[0] + halves[1]).flatten(1) + rows[1] + wide.select(1, 1);
    return b(at::cat({sum, h.transpose(1, 2).reshape({x.size(0), -1}).index({Slice(), Slice(None, 3)})}, 1));
  }
};

struct Factories : Between {
  Tensor forward(const Tensor& x) {
    const std::int64_t batch = x.size(0);
    const Tensor row = at::arange(batch, x.options().requires_grad(false)).unsqueeze(1) / batch;
    const Tensor more = at::zeros({batch, 6}) + at::full({2 * batch, 6}, 0.5).narrow(0, batch - 1, batch) +
                        at::ones_like(x) * at::linspace(0, 1, 6) + at::eye(6).sum(0);
    Tensor filled = at::empty({batch + 2, 6});
    filled.fill_(0.25);
    return b(a(x) * row + more + filled.slice(0, 1, batch + 1)) / static_cast<double>(batch);
  }
};

struct Random : Between {
  Tensor forward(const Tensor& x) {
    Tensor h = at::dropout(a(x), 0.3, is_training());
    h = h + at::randn({x.size(0), 6}) + at::rand_like(h) * at::bernoulli(at::full_like(h, 0.5));
    return b(h + at::empty_like(h).normal_(0, 0.1)) + at::randperm(6);
  }
};

struct OwnGenerator : Between {
  Tensor forward(const Tensor& x) { return b(a(x) + at::rand({6}, generator)); }
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(11);
};

struct Buffers : Between {
  Tensor forward(const Tensor& x) {
    const Tensor h = a(x);
    {
      const at::NoGradGuard no_grad;
      count += 1;
      mean.mul_(0.9).add_(h.mean(0), 0.1);
      last.copy_(h.abs().amax(0));
    }
    return b((h - mean) / (last + 1)) * count;
  }
  Tensor count = register_buffer("count", at::zeros({}));
  Tensor mean = register_buffer("mean", at::zeros({6}));
  Tensor last = register_buffer("last", at::ones({6}));
};

struct Lists : Between {
  Tensor forward(const Tensor& x) {
    const Tensor h = a(x);
    const auto parts = h.split_with_sizes({1, 2, 3}, 1);
    const Tensor stacked = at::stack({h, h * 2, x}, 1);
    const auto [values, which] = h.topk(3, 1);
    const Tensor columns = h.index({Slice(), at::arange(5, -1, -1)});
    return b(at::cat({parts[2], parts[0], parts[1]}, 1) + stacked.sum(1) +
             at::cat({values, which.to(at::kFloat)}, 1)) +
           columns + at::einsum("bi,ij->bj", {h, b->weight});
  }
};

struct Data : Between {
  Tensor forward(const Tensor& x) {
    b->weight.data().clamp_(-0.3, 0.3);  // the forward may write to its weights, if autograd does not see it
    const Tensor h = a(x);
    return b(h * h.data().sigmoid() + h.detach());
  }
};

struct Repeated : Between {
  Tensor forward(Tensor x) {
    for (int times = 0; times < 3; ++times) x = a(x).tanh();
    return b(x);
  }
};

struct Head : nn::Module {
  explicit Head(const Tensor& tied) : weight(register_parameter("weight", tied)) {}
  Tensor weight;
};

struct Tied : nn::Module {
  Tensor forward(const Tensor& ids) { return at::linear(middle(embed(ids)).relu(), head->weight); }
  nn::Embedding embed = register_module("embed", nn::Embedding(11, 6));
  nn::Linear middle = register_module("middle", nn::Linear(6, 6));
  std::shared_ptr<Head> head = register_module("head", std::make_shared<Head>(embed->weight));
};

struct NoGrad : Between {
  Values forward(const Values& inputs) {
    const Tensor h = a(inputs[0]);
    Tensor target;
    {
      const at::NoGradGuard no_grad;
      target = b(h).softmax(-1);
    }
    return {b(h) * target, h.detach() + h};
  }
};

struct Autocast : nn::Module {
  explicit Autocast(bool is_nested = false) : nested(is_nested) {}
  static void set(bool on) { at::autocast::set_autocast_enabled(at::kCPU, on); }
  Tensor forward(const Tensor& x) {
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::increment_nesting();
    set(true);
    Tensor h = b(a(x)).relu();
    if (nested) {
      set(false);
      h = c(h.to(at::kFloat)).view({x.size(0), 8});
      set(true);
      h = b(h);
    }
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    set(false);
    return c(h.to(at::kFloat));
  }
  bool nested;
  nn::Linear a = register_module("a", nn::Linear(8, 8));
  nn::Linear b = register_module("b", nn::Linear(8, 8));
  nn::Linear c = register_module("c", nn::Linear(8, 8));
};

nn::Sequential convolutions() {
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)), nn::BatchNorm2d(8), nn::ReLU(),
                        nn::MaxPool2d(2), nn::Conv2d(nn::Conv2dOptions(8, 8, 3).padding(1)),
                        nn::BatchNorm2d(8), nn::ReLU(nn::ReLUOptions(true)), nn::AdaptiveAvgPool2d(1),
                        nn::Flatten(), nn::Dropout(0.2), nn::Linear(8, 5));
}

struct UNet : nn::Module {
  static nn::Conv2d conv(int in, int out) { return nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1)); }
  static Tensor up(const Tensor& x) {
    return F::interpolate(
        x, F::InterpolateFuncOptions().scale_factor(std::vector<double>{2, 2}).mode(torch::kNearest));
  }
  Tensor forward(const Tensor& x) {
    const Tensor a = down1(x).relu();
    const Tensor b = down2(at::max_pool2d(a, 2)).relu();
    const Tensor c = up(middle(at::max_pool2d(b, 2)).relu());
    return up1(at::cat({up(up2(at::cat({c, b}, 1)).relu()), a}, 1));
  }
  nn::Conv2d down1 = register_module("down1", conv(1, 4));
  nn::Conv2d down2 = register_module("down2", conv(4, 8));
  nn::Conv2d middle = register_module("middle", conv(8, 8));
  nn::Conv2d up2 = register_module("up2", conv(16, 4));
  nn::Conv2d up1 = register_module("up1", conv(8, 1));
};

template <typename Cell, typename Options>
struct Recurrent : nn::Module {
  Tensor forward(const Tensor& x) { return out(std::get<0>(cell(x))); }
  Cell cell = register_module("cell", Cell(Options(8, 12).num_layers(2).batch_first(true).dropout(0.1)));
  nn::Linear out = register_module("out", nn::Linear(12, 3));
};

struct Attention : nn::Module {
  Values forward(const Values& inputs) {
    const Tensor x = in(inputs[0]);
    const auto [mixed, weights] = attention(x, x, x);
    return {out(mixed + x), weights};
  }
  nn::Linear in = register_module("in", nn::Linear(8, 8));
  nn::MultiheadAttention attention =
      register_module("attention", nn::MultiheadAttention(nn::MultiheadAttentionOptions(8, 2).dropout(0.1)));
  nn::Linear out = register_module("out", nn::Linear(8, 8));
};

struct Encoder : nn::Module {
  Tensor forward(const Tensor& x) { return out(encoder(x)); }
  nn::TransformerEncoder encoder = register_module(
      "encoder",
      nn::TransformerEncoder(nn::TransformerEncoderOptions(
          nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16)), 3)));
  nn::Linear out = register_module("out", nn::Linear(8, 2));
};

struct Embeddings : nn::Module {
  Tensor forward(const Tensor& ids) {
    const Tensor positions = at::arange(ids.size(1), ids.options()).unsqueeze(0).expand_as(ids);
    return words(ids).mean(1) + places(positions).sum(1) + bag(ids) +
           at::one_hot(ids, 11).sum(1).to(at::kFloat).narrow(1, 0, 6);
  }
  nn::Embedding words = register_module("words", nn::Embedding(11, 6));
  nn::Embedding places = register_module("places", nn::Embedding(8, 6));
  nn::EmbeddingBag bag = register_module("bag", nn::EmbeddingBag(11, 6));
};

struct Constants : Between {
  Tensor forward(const Tensor& x) {
    const std::vector<float> weights = {1, 2, 3, 4, 5, 6};
    const Tensor made = torch::tensor(weights).mul_(0.5);
    const Tensor wrapped = torch::from_blob(const_cast<float*>(weights.data()), {6});  // NOLINT
    return b(a(x) * held + made + wrapped + torch::tensor({1.0, 0.0, 1.0, 0.0, 1.0, 0.0}, at::kFloat)) *
               torch::tensor(2.5) +
           1;
  }
  Tensor held = numbers({6});
};

struct Several : Between {
  std::tuple<Tensor, std::optional<Tensor>, Tensor> forward(const Tensor& x, const Tensor& weight,
                                                            std::optional<Tensor> scale) {
    Tensor h = a(x).tanh() * weight;
    if (scale) h = h * *scale;
    return {b(h), std::nullopt, h.mean()};
  }
};

struct Statistics : Between {
  Values forward(const Values& inputs) {
    const Tensor h = a(inputs[0]);
    const std::int64_t batch = h.size(0);
    const Tensor mean = h.sum(0) / batch;
    const Tensor pairs = at::mm(h, h.t()).flatten().narrow(0, 0, batch);
    const Tensor doubled = at::cat({h, h}, 0).view({2, batch, 6}).sum(0);
    return {b(doubled - mean), pairs, h.reshape({batch * 2, 3}).reshape({-1, 6})};
  }
};

/// Sizes that depend on the data, as long as they are sizes of tensors.
struct Masked : Between {
  Tensor forward(const Tensor& x) {
    const Tensor h = a(x);
    const Tensor chosen = h.index({h > 0});
    const Tensor padded = at::cat({chosen, chosen.new_zeros({chosen.size(0)})}).view({2, chosen.size(0)});
    return b(at::where(h > 0, h, h * 0.1)).masked_fill(x > 1, 0.5) + padded.sum();
  }
};

struct Norms : nn::Module {
  Tensor forward(const Tensor& x) {
    return bilinear(layer(x), group(x)).softmax(1) +
           instance(x.unsqueeze(2).expand({-1, -1, 3})).mean(2).sum();
  }
  nn::LayerNorm layer = register_module("layer", nn::LayerNorm(nn::LayerNormOptions({6})));
  nn::GroupNorm group = register_module("group", nn::GroupNorm(2, 6));
  nn::InstanceNorm1d instance = register_module(
      "instance", nn::InstanceNorm1d(nn::InstanceNorm1dOptions(6).affine(true).track_running_stats(true)));
  nn::Bilinear bilinear = register_module("bilinear", nn::Bilinear(6, 6, 4));
};

struct PassesThrough : Between {
  Values forward(const Values& inputs) { return {inputs[0], b->bias, a(inputs[0]), table}; }
  Tensor table = register_buffer("table", numbers({3}));
};

struct PowerIteration : Between {
  Tensor forward(const Tensor& x) {
    {
      const at::NoGradGuard no_grad;
      v.copy_(F::normalize(at::mv(b->weight.t(), u), F::NormalizeFuncOptions().dim(0)));
      u.copy_(F::normalize(at::mv(b->weight, v), F::NormalizeFuncOptions().dim(0)));
    }
    const Tensor sigma = at::dot(u.clone(), at::mv(b->weight, v.clone()));
    return F::linear(a(x), b->weight / sigma, b->bias);
  }
  Tensor u = register_buffer("u", numbers({6}));
  Tensor v = register_buffer("v", numbers({6}));
};

struct Marked : Between {
  Tensor forward(const Tensor& x) { return pipe_split(b(pipe_split(a(x).relu()))).tanh(); }
};

struct Batch1 : nn::Module {
  Tensor forward(const Tensor& x, const Tensor& mask) { return out(std::get<0>(cell(x)) * mask); }
  nn::LSTM cell = register_module("cell", nn::LSTM(8, 6));  // the batch is the second dimension
  nn::Linear out = register_module("out", nn::Linear(6, 3));
};

/// An operator of its own, whose gradient is an autograd function: that belongs to the operator.
struct Scale : torch::autograd::Function<Scale> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x * 2; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] * 3};
  }
};
TORCH_LIBRARY(pipewright_tests, library) { library.def("scale(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(pipewright_tests, Autograd, library) {
  library.impl("scale", [](const Tensor& x) { return Tensor(Scale::apply(x)); });
}

struct OwnOperator : Between {
  Tensor forward(const Tensor& x) {
    static const auto scale = c10::Dispatcher::singleton()
                                  .findSchemaOrThrow("pipewright_tests::scale", "")
                                  .typed<Tensor(const Tensor&)>();
    return b(scale.call(a(x))).relu();
  }
};

/// In evaluation dropout gives back what it is given, and its schema does not say so.
struct HiddenAlias : Between {
  Tensor forward(const Tensor& x) {
    const Tensor h = a(x);
    const Tensor first = h.select(1, 0);
    const Tensor same = at::dropout(h, 0.5, false);
    same.mul_(2);
    return b(h) + first.unsqueeze(1);
  }
};

/// A constant that the forward writes to is the model's memory, though no buffer.
struct WrittenConstant : Between {
  Tensor forward(const Tensor& x) {
    calls += 1;
    return b(a(x)) * calls;
  }
  Tensor calls = at::zeros({});
};

struct Frozen : Between {
  Frozen() { a->weight.requires_grad_(false); }
  Tensor forward(const Tensor& x) {
    const Tensor h = a(x);
    return b(at::baddbmm(h.unsqueeze(1), h.unsqueeze(1), b->weight.expand({x.size(0), 6, 6})).squeeze(1));
  }
};

/// One module under two names, and one value returned twice.
struct SharedModule : nn::Module {
  Values forward(const Values& inputs) {
    const Tensor h = second(first(inputs[0]).tanh());
    return {h, h, third(h)};
  }
  nn::Linear first = register_module("first", nn::Linear(6, 6));
  nn::Linear second = register_module("second", first);
  nn::Linear third = register_module("third", nn::Linear(6, 6));
};

/// Running statistics that are written to twice.
struct NormTwice : Between {
  Tensor forward(const Tensor& x) { return b(norm(norm(a(x)).relu())); }
  nn::BatchNorm1d norm = register_module("norm", nn::BatchNorm1d(6));
};

struct EncoderDecoder : nn::Module {
  Tensor forward(const Tensor& source, const Tensor& target) { return out(transformer(source, target)); }
  nn::Transformer transformer = register_module(
      "transformer",
      nn::Transformer(
          nn::TransformerOptions(8, 2).num_encoder_layers(1).num_decoder_layers(2).dim_feedforward(16)));
  nn::Linear out = register_module("out", nn::Linear(8, 3));
};

/// A region without gradients inside of one with autocast: what was cast before it is used again behind it.
struct AutocastNoGrad : Between {
  Tensor forward(const Tensor& x) {
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    Tensor h = a(x);
    {
      const at::NoGradGuard no_grad;
      h = h + a(x).sigmoid();
    }
    h = b(a(h));
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    return h.to(at::kFloat);
  }
};

template <typename Model, typename... Arguments>
std::function<StageModel()> make(Arguments... arguments) {
  return [=] { return StageModel(std::make_shared<Model>(arguments...)); };
}

std::function<Values(std::int64_t)> rows(std::vector<std::int64_t> sizes) {
  return [sizes = std::move(sizes)](std::int64_t batch) {
    std::vector<std::int64_t> all = {batch};
    all.insert(all.end(), sizes.begin(), sizes.end());
    return Values{numbers(all)};
  };
}

StageModel lambda_model() {
  const auto layer = std::make_shared<nn::LinearImpl>(6, 6);
  const Tensor captured = numbers({6, 6});
  return {[layer, captured](const Tensor& x) { return layer->forward(x.mm(captured)).relu(); }, layer};
}

StageModel gpt_model() {
  return gpt::make_stage({.layers = 4, .width = 16, .heads = 2, .context = 8, .vocab = 13}, 0, 1);
}

StageModel evaluating(const StageModel& model) {
  model.module->eval();
  return model;
}

}  // namespace

const std::vector<TracedCase>& traced_cases() {
  static const std::vector<TracedCase> cases = {
      {"mlp",
       [] {
         return StageModel(nn::Sequential(nn::Linear(6, 12), nn::ReLU(), nn::Linear(12, 12), nn::Tanh(),
                                          nn::Linear(12, 3)));
       },
       rows({6})},
      {.name = "in_place", .make = make<InPlace>(), .inputs = rows({6}), .writes_in_place = true},
      {.name = "in_place_on_input",
       .make = make<InPlaceOnInput>(),
       .inputs = rows({6}),
       .writes_in_place = true},
      {"views", make<Views>(), rows({6})},
      {.name = "factories", .make = make<Factories>(), .inputs = rows({6}), .writes_in_place = true},
      {.name = "random", .make = make<Random>(), .inputs = rows({6}), .writes_in_place = true},
      {"own_generator", make<OwnGenerator>(), rows({6})},
      {.name = "buffers", .make = make<Buffers>(), .inputs = rows({6}), .writes_in_place = true},
      {.name = "lists", .make = make<Lists>(), .inputs = rows({6}), .sums_in_another_order = true},
      {.name = "data", .make = make<Data>(), .inputs = rows({6}), .writes_in_place = true},
      {.name = "repeated", .make = make<Repeated>(), .inputs = rows({6}), .sums_in_another_order = true},
      {.name = "tied",
       .make = make<Tied>(),
       .inputs = [](std::int64_t batch) { return Values{tokens(batch, 4, 11)}; },
       .sums_in_another_order = true},
      {.name = "no_grad", .make = make<NoGrad>(), .inputs = rows({6}), .sums_in_another_order = true},
      {.name = "autocast",
       .make = make<Autocast>(),
       .inputs = rows({8}),
       .sums_in_another_order = true,
       .tolerance = 0.02},
      {.name = "autocast_nested",
       .make = make<Autocast>(true),
       .inputs = rows({8}),
       .sums_in_another_order = true,
       .tolerance = 0.02},
      {.name = "convolutions",
       .make = [] { return StageModel(convolutions()); },
       .inputs = rows({3, 8, 8}),
       .writes_in_place = true},
      {"convolutions_eval", [] { return evaluating(StageModel(convolutions())); }, rows({3, 8, 8})},
      {"unet", make<UNet>(), rows({1, 16, 16})},
      {"lstm", make<Recurrent<nn::LSTM, nn::LSTMOptions>>(), rows({5, 8})},
      {"gru", make<Recurrent<nn::GRU, nn::GRUOptions>>(), rows({5, 8})},
      {"rnn", make<Recurrent<nn::RNN, nn::RNNOptions>>(), rows({5, 8})},
      {"attention",
       make<Attention>(),
       [](std::int64_t batch) { return Values{numbers({5, batch, 8})}; },
       {.batch_dims = {{1}}}},
      {"encoder",
       make<Encoder>(),
       [](std::int64_t batch) { return Values{numbers({5, batch, 8})}; },
       {.batch_dims = {{1}}}},
      {"embeddings", make<Embeddings>(), [](std::int64_t batch) { return Values{tokens(batch, 5, 11)}; }},
      {.name = "constants", .make = make<Constants>(), .inputs = rows({6}), .writes_in_place = true},
      {"lambda", lambda_model, rows({6})},
      {"several", make<Several>(),
       [](std::int64_t batch) { return Values{numbers({batch, 6}), numbers({6}), Tensor()}; }},
      {.name = "statistics", .make = make<Statistics>(), .inputs = rows({6}), .sums_in_another_order = true},
      {"masked", make<Masked>(), rows({6})},
      {.name = "norms", .make = make<Norms>(), .inputs = rows({6}), .writes_in_place = true},
      {.name = "passes_through",
       .make = make<PassesThrough>(),
       .inputs = rows({6}),
       .sums_in_another_order = true},
      {.name = "power_iteration",
       .make = make<PowerIteration>(),
       .inputs = rows({6}),
       .writes_in_place = true,
       .sums_in_another_order = true},
      {"marked", make<Marked>(), rows({6})},
      {"own_operator", make<OwnOperator>(), rows({6})},
      {.name = "shared_module",
       .make = make<SharedModule>(),
       .inputs = rows({6}),
       .sums_in_another_order = true},
      {.name = "norm_twice",
       .make = make<NormTwice>(),
       .inputs = rows({6}),
       .writes_in_place = true,
       .sums_in_another_order = true},
      {"encoder_decoder",
       make<EncoderDecoder>(),
       [](std::int64_t batch) { return Values{numbers({5, batch, 8}), numbers({3, batch, 8})}; },
       {.batch_dims = {{1, 1}}}},
      {.name = "autocast_no_grad",
       .make = make<AutocastNoGrad>(),
       .inputs = rows({6}),
       .sums_in_another_order = true,
       .tolerance = 0.02},
      {.name = "hidden_alias", .make = make<HiddenAlias>(), .inputs = rows({6}), .writes_in_place = true},
      {"written_constant", make<WrittenConstant>(), rows({6})},
      {.name = "frozen", .make = make<Frozen>(), .inputs = rows({6}), .sums_in_another_order = true},
      {"batch_second",
       make<Batch1>(),
       [](std::int64_t batch) { return Values{numbers({5, batch, 8}), numbers({batch, 6})}; },
       {.batch_dims = {{1, 0}}}},
      {"gpt", gpt_model, [](std::int64_t batch) { return Values{tokens(batch, 8, 13)}; }},
  };
  return cases;
}

const TracedCase& case_named(const std::string& name) {
  return *std::ranges::find(traced_cases(), name, &TracedCase::name);
}

StageModel made(const TracedCase& from) {
  at::set_num_threads(1);
  torch::manual_seed(0);
  return from.make();
}

std::map<std::string, at::Tensor> copied(const Graph& part, const std::map<std::string, at::Tensor>& state) {
  std::map<std::string, at::Tensor> copies;
  for (const auto* names : {&part.parameters, &part.buffers, &part.borrowed_buffers}) {
    std::map<ValueId, at::Tensor> by_value;
    for (const auto& [name, value] : *names) {
      const at::Tensor& tensor = state.at(name.substr(0, name.find(kCopy)));
      if (!by_value.contains(value))
        by_value[value] = tensor.detach().clone().requires_grad_(tensor.requires_grad());
      copies[name] = by_value[value];
    }
  }
  return copies;
}

}  // namespace pipewright
