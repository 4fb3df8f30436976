#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace pipewright {

/// What an optimizer remembers of one parameter: tensors of its shape, and the steps it has made.
struct ParameterMemory {
  std::map<std::string, at::Tensor> tensors;
  std::int64_t steps = 0;
};

/// `SGD`, `Adam` or `AdamW`. Throws Error for another one.
std::string optimizer_kind(const torch::optim::Optimizer& optimizer);

/// Nothing before the optimizer's first step with this parameter.
std::optional<ParameterMemory> memory_of(const torch::optim::Optimizer& optimizer,
                                         const at::Tensor& parameter);

void set_memory(torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                const ParameterMemory& memory);

}  // namespace pipewright
