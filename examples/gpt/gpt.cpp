#include "gpt/gpt.h"

#include <ATen/ATen.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cmath>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/base/error.h"
#include "pipewright/runtime/random.h"

namespace gpt {
namespace {

namespace nn = torch::nn;

/// Bias and product in one operator: what nn::Linear does for matrices alone.
at::Tensor project(const nn::Linear& layer, const at::Tensor& x) {
  return at::linear(x, layer->weight, layer->bias);
}

class Embedding : public nn::Module {
 public:
  explicit Embedding(const Config& config)
      : tokens_(register_module("tokens", nn::Embedding(config.vocab, config.width))),
        positions_(register_module("positions", nn::Embedding(config.context, config.width))) {}

  at::Tensor forward(const at::Tensor& tokens) {
    return tokens_(tokens) + positions_->weight.narrow(0, 0, tokens.size(1));
  }

 private:
  nn::Embedding tokens_;
  nn::Embedding positions_;
};

class Attention : public nn::Module {
 public:
  explicit Attention(const Config& config)
      : heads_(config.heads),
        qkv_(register_module("qkv", nn::Linear(config.width, 3 * config.width))),
        out_(register_module("out", nn::Linear(config.width, config.width))) {}

  at::Tensor forward(const at::Tensor& x) {
    const std::int64_t width = x.size(2);
    // [3, batch, head, position, width of a head]
    const at::Tensor qkv =
        project(qkv_, x).view({x.size(0), x.size(1), 3, heads_, width / heads_}).permute({2, 0, 3, 1, 4});
    const at::Tensor mixed = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], /*attn_mask=*/{},
                                                              /*dropout_p=*/0.0, /*is_causal=*/true);
    return project(out_, mixed.transpose(1, 2).reshape(x.sizes()));
  }

 private:
  std::int64_t heads_;
  nn::Linear qkv_;
  nn::Linear out_;
};

class Mlp : public nn::Module {
 public:
  explicit Mlp(const Config& config)
      : up_(register_module("up", nn::Linear(config.width, 4 * config.width))),
        down_(register_module("down", nn::Linear(4 * config.width, config.width))) {}

  at::Tensor forward(const at::Tensor& x) { return project(down_, at::gelu(project(up_, x))); }

 private:
  nn::Linear up_;
  nn::Linear down_;
};

nn::LayerNorm make_norm(const Config& config) { return nn::LayerNorm(nn::LayerNormOptions({config.width})); }

class Block : public nn::Module {
 public:
  explicit Block(const Config& config)
      : norm1_(register_module("norm1", make_norm(config))),
        attention_(register_module("attention", std::make_shared<Attention>(config))),
        norm2_(register_module("norm2", make_norm(config))),
        mlp_(register_module("mlp", std::make_shared<Mlp>(config))) {}

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = x + attention_->forward(norm1_(x));
    return y + mlp_->forward(norm2_(y));
  }

 private:
  nn::LayerNorm norm1_;
  std::shared_ptr<Attention> attention_;
  nn::LayerNorm norm2_;
  std::shared_ptr<Mlp> mlp_;
};

/// A range of the model; its parameters are named as in the whole.
class Piece : public nn::Module {
 public:
  Piece(const Config& config, const Share& share) {
    if (share.embedding) embedding_ = register_module("embedding", std::make_shared<Embedding>(config));
    if (share.first_block < share.end_block) {
      const auto numbered = register_module("blocks", std::make_shared<nn::Module>());
      for (std::int64_t block = share.first_block; block < share.end_block; ++block) {
        blocks_.push_back(numbered->register_module(std::to_string(block), std::make_shared<Block>(config)));
      }
    }
    if (share.head) {
      norm_ = register_module("norm", make_norm(config));
      head_ = register_module("head", nn::Linear(nn::LinearOptions(config.width, config.vocab).bias(false)));
    }
  }

  at::Tensor forward(const at::Tensor& input) {
    at::Tensor x = embedding_ ? embedding_->forward(input) : input;
    for (const auto& block : blocks_) x = block->forward(x);
    return head_ ? project(head_, norm_(x)) : x;
  }

 private:
  std::shared_ptr<Embedding> embedding_;
  std::vector<std::shared_ptr<Block>> blocks_;
  nn::LayerNorm norm_ = nullptr;
  nn::Linear head_ = nullptr;
};

/// FNV-1a: std::hash differs from library to library.
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

/// As GPT-2: small normal weights, those that end a residual branch smaller with depth.
void initialise(const std::string& name, const at::Tensor& parameter, const Config& config) {
  const at::NoGradGuard no_grad;
  if (name.ends_with(".bias")) {
    parameter.zero_();
  } else if (parameter.dim() == 1) {
    parameter.fill_(1);
  } else {
    const bool ends_branch = name.ends_with("attention.out.weight") || name.ends_with("mlp.down.weight");
    const double deviation = ends_branch ? 0.02 / std::sqrt(2.0 * static_cast<double>(config.layers)) : 0.02;
    parameter.normal_(0, deviation, pipewright::seeded_generator({config.seed, hash_of(name)}));
  }
}

}  // namespace

void check(const Config& config) {
  const auto within = [](std::int64_t value, const char* what) {
    if (value >= 1 && value <= kMostOfAnything) return;
    throw pipewright::ArgumentError(std::string(what) + " must be from 1 to " +
                                    std::to_string(kMostOfAnything));
  };
  within(config.layers, "the number of layers");
  within(config.width, "the width");
  within(config.heads, "the number of heads");
  within(config.context, "the context");
  within(config.vocab, "the size of the vocabulary");
  if (config.width % config.heads != 0) {
    throw pipewright::ArgumentError("the number of heads, " + std::to_string(config.heads) +
                                    ", does not divide the width, " + std::to_string(config.width));
  }
}

Share share_of(pipewright::Stage stage, pipewright::Stage stages, std::int64_t layers) {
  return {.embedding = stage == 0,
          .first_block = stage * layers / stages,
          .end_block = (stage + 1) * layers / stages,
          .head = stage + 1 == stages};
}

pipewright::StageModel make_stage(const Config& config, pipewright::Stage stage, pipewright::Stage stages) {
  check(config);
  const Share share = share_of(stage, stages, config.layers);
  const auto piece = std::make_shared<Piece>(config, share);
  for (const auto& named : piece->named_parameters()) initialise(named.key(), named.value(), config);
  piece->to(config.dtype);

  pipewright::StageModel model(piece);
  model.global_name = [](const std::string& name) { return name; };
  const auto slot = [](std::vector<std::int64_t> sizes, at::ScalarType dtype) {
    return pipewright::Boundary{{.sizes = std::move(sizes), .dtype = dtype}};
  };
  model.inputs = share.embedding ? slot({-1, -1}, at::kLong) : slot({-1, -1, config.width}, config.dtype);
  model.outputs = slot({-1, -1, share.head ? config.vocab : config.width}, config.dtype);
  return model;
}

at::Tensor next_character_loss(const pipewright::Values& outputs, const pipewright::Values& targets) {
  return at::cross_entropy_loss(outputs.at(0).flatten(0, 1).to(at::kFloat), targets.at(0).flatten());
}

}  // namespace gpt
