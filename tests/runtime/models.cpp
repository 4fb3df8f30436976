#include "runtime/models.h"

#include <ATen/CPUGeneratorImpl.h>

#include <cmath>
#include <cstdlib>
#include <utility>

#include "pipewright/runtime/random.h"

namespace pipewright {
namespace {

thread_local Microbatch announced = -1;

std::uint64_t hash_of(const std::string& text) {
  std::uint64_t hash = 14695981039346656037U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return hash;
}

class Dense : public Layer {
 public:
  Dense(std::int64_t inputs, std::int64_t outputs)
      : linear_(register_module("linear", torch::nn::Linear(inputs, outputs))) {}
  Values forward(const Values& inputs) override { return {torch::tanh(linear_->forward(inputs.at(0)))}; }

 private:
  torch::nn::Linear linear_;
};

class Function : public Layer {
 public:
  explicit Function(std::function<Values(const Values&)> f) : f_(std::move(f)) {}
  Values forward(const Values& inputs) override { return f_(inputs); }

 private:
  std::function<Values(const Values&)> f_;
};

class Embedding : public Layer {
 public:
  Embedding(std::int64_t vocabulary, std::int64_t length, std::int64_t width) {
    tokens_ = register_parameter("tokens", torch::zeros({vocabulary, width}));
    positions_ = register_parameter("positions", torch::zeros({length, width}));
  }
  Values forward(const Values& inputs) override {
    const at::Tensor& tokens = inputs.at(0);
    return {torch::embedding(tokens_, tokens) + positions_.slice(0, 0, tokens.size(1))};
  }

 private:
  at::Tensor tokens_;
  at::Tensor positions_;
};

class Block : public Layer {
 public:
  Block(std::int64_t width, std::int64_t heads)
      : heads_(heads),
        norm1_(register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        qkv_(register_module("qkv", torch::nn::Linear(width, 3 * width))),
        projection_(register_module("projection", torch::nn::Linear(width, width))),
        norm2_(register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        up_(register_module("up", torch::nn::Linear(width, 2 * width))),
        down_(register_module("down", torch::nn::Linear(2 * width, width))) {}

  Values forward(const Values& inputs) override {
    const at::Tensor x = inputs.at(0) + attention(norm1_->forward(inputs.at(0)));
    return {x + down_->forward(torch::gelu(up_->forward(norm2_->forward(x))))};
  }

 private:
  at::Tensor attention(const at::Tensor& x) {
    const std::int64_t batch = x.size(0);
    const std::int64_t length = x.size(1);
    const std::int64_t width = x.size(2);
    const auto parts =
        qkv_->forward(x).view({batch, length, 3, heads_, width / heads_}).permute({2, 0, 3, 1, 4}).unbind(0);
    const at::Tensor later = torch::ones({length, length}, x.options().dtype(at::kBool)).triu(1);
    const double scale = 1 / std::sqrt(static_cast<double>(width / heads_));
    const at::Tensor weights = (parts[0].matmul(parts[1].transpose(-2, -1)) * scale)
                                   .masked_fill(later, -std::numeric_limits<double>::infinity())
                                   .softmax(-1);
    return projection_->forward(weights.matmul(parts[2]).transpose(1, 2).reshape({batch, length, width}));
  }

  std::int64_t heads_;
  torch::nn::LayerNorm norm1_;
  torch::nn::Linear qkv_;
  torch::nn::Linear projection_;
  torch::nn::LayerNorm norm2_;
  torch::nn::Linear up_;
  torch::nn::Linear down_;
};

class Head : public Layer {
 public:
  Head(std::int64_t vocabulary, std::int64_t width)
      : norm_(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))) {
    weight_ = register_parameter("weight", torch::zeros({vocabulary, width}));
  }
  Values forward(const Values& inputs) override {
    return {torch::nn::functional::linear(norm_->forward(inputs.at(0)), weight_)};
  }

 private:
  torch::nn::LayerNorm norm_;
  at::Tensor weight_;
};

class ManyValues : public Layer {
 public:
  explicit ManyValues(std::int64_t width)
      : linear_(register_module("linear", torch::nn::Linear(width, width))),
        table_(register_module("table", torch::nn::Embedding(kIndices, width))) {
    scale_ = register_parameter("scale", torch::zeros({width}));
  }
  Values forward(const Values& inputs) override {
    const at::Tensor& mask = inputs.at(1);
    const at::Tensor& index = inputs.at(2);
    at::Tensor bias = inputs.at(3);
    at::Tensor x = torch::tanh(linear_->forward(inputs.at(0))).masked_fill(mask, 0) + inputs.at(4);
    x = x + table_->forward(index);
    if (bias.defined()) {
      bias = bias * scale_;
      x = x + bias;
    }
    return {x, mask.logical_not(), (index + 1).remainder(kIndices), bias, x.detach().mean().reshape({1})};
  }

  static constexpr std::int64_t kIndices = 5;

 private:
  torch::nn::Linear linear_;
  torch::nn::Embedding table_;
  at::Tensor scale_;
};

class Dropout : public Layer {
 public:
  Dropout(std::int64_t width, std::uint64_t layer)
      : layer_(layer), linear_(register_module("linear", torch::nn::Linear(width, width))) {}
  Values forward(const Values& inputs) override {
    const at::Tensor x = linear_->forward(inputs.at(0));
    constexpr double kKept = 0.7;
    const auto microbatch = static_cast<std::uint64_t>(microbatch_now());
    const at::Tensor kept =
        torch::empty(x.sizes()).bernoulli_(kKept, seeded_generator({17, 0, microbatch, layer_}));
    return {x * kept.to(x.device()) / kKept};
  }

 private:
  std::uint64_t layer_;
  torch::nn::Linear linear_;
};

class UsedTwice : public Layer {
 public:
  explicit UsedTwice(std::int64_t width)
      : linear_(register_module("linear", torch::nn::Linear(width, width))) {}
  Values forward(const Values& inputs) override {
    return {torch::tanh(linear_->forward(torch::tanh(linear_->forward(inputs.at(0)))))};
  }

 private:
  torch::nn::Linear linear_;
};

/// Microbatches that differ in their values and in their number of rows.
std::vector<MicrobatchValues> regression_data(Microbatch count, std::int64_t inputs, std::int64_t outputs) {
  std::vector<MicrobatchValues> data;
  for (Microbatch k = 0; k < count; ++k) {
    const std::int64_t rows = 2 + k % 2;
    const auto seed = static_cast<std::uint64_t>(2 * k);
    data.push_back({{numbers(seed, {rows, inputs})}, {numbers(seed + 1, {rows, outputs})}, {}});
  }
  return data;
}

LayerFactory frozen_layer(const LayerFactory& layer, const std::string& only = "") {
  return [=] {
    auto made = layer();
    for (const auto& item : made->named_parameters()) {
      if (item.key().find(only) != std::string::npos) item.value().set_requires_grad(false);
    }
    return made;
  };
}

at::Device& device_now() {
  static at::Device device = [] {
    const char* name = std::getenv("PIPEWRIGHT_TEST_DEVICE");
    return at::Device(name ? name : "cpu");
  }();
  return device;
}

}  // namespace

Slice::Slice(const Model& model, std::size_t first, std::size_t last) {
  for (std::size_t at = first; at < last; ++at) {
    std::string name("l");
    name += std::to_string(at);
    layers_.push_back(register_module(name, model.layers.at(at)()));
  }
  to(test_device());
  const torch::NoGradGuard no_grad;
  for (const auto& item : named_parameters()) {
    at::Tensor parameter = item.value();
    parameter.copy_(numbers(hash_of(item.key()), parameter.sizes()) * 0.5);
  }
}

Values Slice::forward(const Values& inputs) {
  Values values = inputs;
  for (const auto& layer : layers_) values = layer->forward(values);
  return values;
}

StageFactory cut(const Model& model, Stage stages) {
  return [=](Stage stage) {
    const auto first_of = [&](Stage s) {
      return static_cast<std::size_t>(s) * model.layers.size() / static_cast<std::size_t>(stages);
    };
    if (first_of(stage) == first_of(stage + 1)) return StageModel();
    StageModel made(std::make_shared<Slice>(model, first_of(stage), first_of(stage + 1)));
    made.global_name = [](const std::string& name) { return name; };
    return made;
  };
}

Microbatch microbatch_now() { return current_microbatch().value_or(announced); }

void announce_microbatch(Microbatch microbatch) { announced = microbatch; }

at::Device test_device() { return device_now(); }

OnDevice::OnDevice(at::Device device) : before_(std::exchange(device_now(), device)) {}
OnDevice::~OnDevice() { device_now() = before_; }

at::Tensor numbers(std::uint64_t seed, at::IntArrayRef sizes) {
  return torch::empty(sizes).normal_(0, 1, at::make_generator<at::CPUGeneratorImpl>(seed)).to(test_device());
}

LayerFactory dense(std::int64_t inputs, std::int64_t outputs) {
  return [=] { return std::make_shared<Dense>(inputs, outputs); };
}

LayerFactory function(std::function<Values(const Values&)> f) {
  return [=] { return std::make_shared<Function>(f); };
}

at::Tensor squared_error(const Values& outputs, const Values& targets) {
  return (outputs.at(0) - targets.at(0)).square().mean();
}

Model mlp() {
  const std::vector<std::int64_t> widths{3, 5, 4, 6, 2, 7, 8, 1, 9};
  std::vector<LayerFactory> layers;
  for (std::size_t at = 0; at + 1 < widths.size(); ++at) layers.push_back(dense(widths[at], widths[at + 1]));
  return {"Mlp", layers, squared_error, [](Microbatch count) { return regression_data(count, 3, 9); }};
}

Model gpt() {
  static constexpr std::int64_t kVocabulary = 7;
  static constexpr std::int64_t kLength = 5;
  static constexpr std::int64_t kWidth = 4;
  std::vector<LayerFactory> layers;
  layers.emplace_back([] { return std::make_shared<Embedding>(kVocabulary, kLength, kWidth); });
  for (int block = 0; block < 4; ++block) {
    layers.emplace_back([] { return std::make_shared<Block>(kWidth, 2); });
  }
  layers.emplace_back([] { return std::make_shared<Head>(kVocabulary, kWidth); });
  const auto loss = [](const Values& outputs, const Values& targets) {
    return torch::nn::functional::cross_entropy(outputs.at(0).flatten(0, 1), targets.at(0).flatten());
  };
  const auto data = [](Microbatch count) {
    std::vector<MicrobatchValues> all;
    for (Microbatch k = 0; k < count; ++k) {
      const at::Tensor text = torch::arange(2 * (kLength + 1), test_device())
                                  .mul(3 + k)
                                  .add(k)
                                  .remainder(kVocabulary)
                                  .view({2, -1});
      all.push_back({{text.slice(1, 0, kLength)}, {text.slice(1, 1)}, {}});
    }
    return all;
  };
  return {"Gpt", layers, loss, data, {{"l0.tokens", "l5.weight"}}};
}

Model many_values() {
  static constexpr std::int64_t kWidth = 4;
  const auto loss = [](const Values& outputs, const Values& targets) {
    const at::Tensor error = squared_error(outputs, targets);
    return outputs.at(3).defined() ? error + outputs.at(3).sum() : error;
  };
  const auto data = [](Microbatch count) {
    std::vector<MicrobatchValues> all = regression_data(count, kWidth, kWidth);
    for (Microbatch k = 0; k < count; ++k) {
      Values& inputs = all[static_cast<std::size_t>(k)].inputs;
      const std::int64_t rows = inputs[0].size(0);
      inputs.push_back(inputs[0] > 0.3);
      inputs.push_back(torch::arange(rows, test_device()).add(k).remainder(ManyValues::kIndices));
      inputs.push_back(k % 2 == 0 ? at::Tensor() : numbers(100, {kWidth}));
      inputs.push_back(torch::full({1}, 0.25, test_device()));
    }
    return all;
  };
  const LayerFactory layer = [] { return std::make_shared<ManyValues>(kWidth); };
  return {"ManyValues", std::vector(6, layer), loss, data};
}

Model dropout() {
  std::vector<LayerFactory> layers;
  for (std::uint64_t at = 0; at < 5; ++at) {
    layers.emplace_back([at] { return std::make_shared<Dropout>(4, at); });
  }
  return {"Dropout", layers, squared_error, [](Microbatch count) { return regression_data(count, 4, 4); }};
}

Model frozen() {
  const LayerFactory layer = dense(4, 4);
  return {"Frozen",
          {frozen_layer(layer), frozen_layer(layer), frozen_layer(layer, "weight"), frozen_layer(layer),
           layer, layer, frozen_layer(layer, "bias"), frozen_layer(layer)},
          squared_error,
          [](Microbatch count) { return regression_data(count, 4, 4); }};
}

Model used_twice() {
  const LayerFactory layer = [] { return std::make_shared<UsedTwice>(4); };
  return {"UsedTwice", std::vector(5, layer), squared_error,
          [](Microbatch count) { return regression_data(count, 4, 4); }};
}

Model sparse() {
  const LayerFactory sine = function([](const Values& inputs) { return Values{inputs.at(0).sin()}; });
  return {"Sparse", {dense(4, 3), sine, dense(3, 5)}, squared_error, [](Microbatch count) {
            return regression_data(count, 4, 5);
          }};
}

std::vector<Model> every_model() {
  return {mlp(), gpt(), many_values(), dropout(), frozen(), used_twice(), sparse()};
}

}  // namespace pipewright
