#include "runtime/checkpoint/optimizer_state.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <memory>

#include "pipewright/base/error.h"

namespace pipewright {
namespace {

using torch::optim::Optimizer;

template <typename State>
ParameterMemory adam_memory(const torch::optim::OptimizerParamState& state) {
  const auto& own = static_cast<const State&>(state);
  ParameterMemory memory{.tensors = {{"exp_avg", own.exp_avg()}, {"exp_avg_sq", own.exp_avg_sq()}},
                         .steps = own.step()};
  if (own.max_exp_avg_sq().defined()) memory.tensors["max_exp_avg_sq"] = own.max_exp_avg_sq();
  return memory;
}

template <typename State>
std::unique_ptr<torch::optim::OptimizerParamState> adam_state(const ParameterMemory& memory) {
  auto state = std::make_unique<State>();
  state->step(memory.steps);
  state->exp_avg(memory.tensors.at("exp_avg"));
  state->exp_avg_sq(memory.tensors.at("exp_avg_sq"));
  if (const auto found = memory.tensors.find("max_exp_avg_sq"); found != memory.tensors.end()) {
    state->max_exp_avg_sq(found->second);
  }
  return state;
}

}  // namespace

std::string optimizer_kind(const Optimizer& optimizer) {
  if (dynamic_cast<const torch::optim::SGD*>(&optimizer)) return "SGD";
  if (dynamic_cast<const torch::optim::AdamW*>(&optimizer)) return "AdamW";
  if (dynamic_cast<const torch::optim::Adam*>(&optimizer)) return "Adam";
  throw Error("the state of this optimizer cannot be saved: it is not SGD, Adam or AdamW");
}

std::optional<ParameterMemory> memory_of(const Optimizer& optimizer, const at::Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return std::nullopt;
  const std::string kind = optimizer_kind(optimizer);
  if (kind == "AdamW") return adam_memory<torch::optim::AdamWParamState>(*found->second);
  if (kind == "Adam") return adam_memory<torch::optim::AdamParamState>(*found->second);
  const auto& state = static_cast<const torch::optim::SGDParamState&>(*found->second);
  return ParameterMemory{.tensors = {{"momentum_buffer", state.momentum_buffer()}}};
}

void set_memory(Optimizer& optimizer, const at::Tensor& parameter, const ParameterMemory& memory) {
  const std::string kind = optimizer_kind(optimizer);
  std::unique_ptr<torch::optim::OptimizerParamState> state;
  if (kind == "AdamW") {
    state = adam_state<torch::optim::AdamWParamState>(memory);
  } else if (kind == "Adam") {
    state = adam_state<torch::optim::AdamParamState>(memory);
  } else {
    auto own = std::make_unique<torch::optim::SGDParamState>();
    own->momentum_buffer(memory.tensors.at("momentum_buffer"));
    state = std::move(own);
  }
  optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
}

}  // namespace pipewright
