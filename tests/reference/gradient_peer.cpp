// Trains the model of gradients_test.py for a few steps and writes what came of it.
//
//   gradient_peer DATA RESULT RATE ROWS SCHEDULE RANKS MICROBATCHES STAGES_PER_RANK
//   gradient_peer DATA RESULT RATE ROWS PLAN.csv
//
// DATA is a dictionary of tensors: the weights by their names in the whole model,
// `inputs` and `targets` with the steps as first dimension. A microbatch takes ROWS
// rows; after every step but the last, RATE times the gradients is subtracted from
// the weights. RESULT is a dictionary of the last step's gradients and `losses` by
// step and microbatch.

#include <ATen/core/Dict.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/serialize.h>

#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "pipewright/runtime/pipeline.h"
#include "pipewright/schedule/csv.h"
#include "pipewright/schedule/generate.h"

namespace pipewright {
namespace {

namespace nn = torch::nn;
using Tensors = Pipeline::StateDict;

struct Sizes {
  std::int64_t blocks = 0;
  std::int64_t width = 0;
  std::int64_t words = 0;
};

struct Block : nn::Module {
  explicit Block(std::int64_t width)
      : norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})))),
        up(register_module("up", nn::Linear(width, 2 * width))),
        down(register_module("down", nn::Linear(2 * width, width))) {}

  at::Tensor forward(const at::Tensor& x) { return x + down(nn::functional::gelu(up(norm(x)))); }

  nn::LayerNorm norm;
  nn::Linear up;
  nn::Linear down;
};

/// What one stage of several computes; parameters are called as in the whole model.
struct Piece : nn::Module {
  Piece(const Sizes& sizes, Stage stage, Stage stages) {
    auto named = register_module("blocks", std::make_shared<nn::Module>());
    if (stage == 0) embedding = register_module("embedding", nn::Embedding(sizes.words, sizes.width));
    const std::int64_t end = (stage + 1) * sizes.blocks / stages;
    for (std::int64_t index = stage * sizes.blocks / stages; index < end; ++index) {
      blocks.push_back(named->register_module(std::to_string(index), std::make_shared<Block>(sizes.width)));
    }
    if (stage == stages - 1) {
      norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({sizes.width})));
      head = register_module("head", nn::Linear(sizes.width, sizes.words));
    }
  }

  at::Tensor forward(at::Tensor x) {
    if (embedding) x = embedding(x);
    for (const auto& block : blocks) x = block->forward(x);
    return head ? head(norm(x)) : x;
  }

  nn::Embedding embedding = nullptr;
  std::vector<std::shared_ptr<Block>> blocks;
  nn::LayerNorm norm = nullptr;
  nn::Linear head = nullptr;
};

Tensors read_tensors(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  Tensors tensors;
  for (const auto& entry : torch::pickle_load(bytes).toGenericDict()) {
    tensors.emplace(entry.key().toStringRef(), entry.value().toTensor());
  }
  return tensors;
}

void write_tensors(const Tensors& tensors, const std::string& path) {
  c10::Dict<std::string, at::Tensor> dictionary;
  for (const auto& [name, tensor] : tensors) dictionary.insert(name, tensor);
  const std::vector<char> bytes = torch::pickle_save(dictionary);
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// Takes the tensor called `name` out of `tensors`.
at::Tensor take(Tensors& tensors, const std::string& name) { return tensors.extract(name).mapped(); }

Sizes sizes_of(const Tensors& weights) {
  Sizes sizes{.width = weights.at("norm.weight").size(0), .words = weights.at("head.weight").size(0)};
  while (weights.contains("blocks." + std::to_string(sizes.blocks) + ".norm.weight")) ++sizes.blocks;
  return sizes;
}

Pipeline make_pipeline(const Schedule& schedule, const Tensors& weights) {
  auto build = [&](Stage stage) {
    StageModel model(std::make_shared<Piece>(sizes_of(weights), stage, schedule.stage_count()));
    model.global_name = [](const std::string& name) { return name; };
    return model;
  };
  auto loss = [](const Values& outputs, const Values& targets) {
    return nn::functional::cross_entropy(outputs[0].flatten(0, 1), targets[0].flatten());
  };
  Pipeline pipeline(schedule, build, {.loss = loss, .threads_per_rank = 1});
  pipeline.load_state_dict(weights);
  return pipeline;
}

void update(Pipeline& pipeline, double rate) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : pipeline.parameters()) parameter.sub_(rate * parameter.grad());
  pipeline.zero_grad();
}

Tensors train(const Schedule& schedule, Tensors data, double rate, std::int64_t rows) {
  const at::Tensor inputs = take(data, "inputs");
  const at::Tensor targets = take(data, "targets");
  Pipeline pipeline = make_pipeline(schedule, data);
  std::vector<at::Tensor> losses;
  for (std::int64_t step = 0; step < inputs.size(0); ++step) {
    if (step > 0) update(pipeline, rate);
    const std::int64_t end = rows * schedule.microbatches;
    const StepResult result =
        pipeline.step({inputs[step].narrow(0, 0, end)}, {targets[step].narrow(0, 0, end)});
    losses.push_back(at::stack(result.losses));
  }
  Tensors found = {{"losses", at::stack(losses)}};
  for (const auto& [name, parameter] : pipeline.named_parameters()) found.emplace(name, parameter.grad());
  return found;
}

Schedule read_schedule(const std::vector<std::string>& arguments) {
  if (arguments.size() == 1) {
    std::ifstream in(arguments[0]);
    return parse_csv(in);
  }
  return make_schedule({.name = arguments.at(0),
                        .ranks = std::stoi(arguments.at(1)),
                        .microbatches = std::stoi(arguments.at(2)),
                        .stages_per_rank = std::stoi(arguments.at(3))});
}

}  // namespace
}  // namespace pipewright

int main(int argc, char** argv) {
  using namespace pipewright;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() != 5 && arguments.size() != 8) {
    std::cerr << "usage: gradient_peer DATA RESULT RATE ROWS "
                 "(PLAN.csv | SCHEDULE RANKS MICROBATCHES STAGES_PER_RANK)\n";
    return 2;
  }
  try {
    const Schedule schedule = read_schedule({arguments.begin() + 4, arguments.end()});
    const Tensors data = read_tensors(arguments[0]);
    write_tensors(train(schedule, data, std::stod(arguments[2]), std::stoll(arguments[3])), arguments[1]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
