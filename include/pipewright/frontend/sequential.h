#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstddef>
#include <vector>

#include "pipewright/runtime/stage_model.h"

namespace pipewright {

/// The children of a torch::nn::Sequential as stages, without tracing: parameters keep their names in it,
/// `3.weight`. `begins`: the child that each stage but the first begins with, in ascending order; empty:
/// every child is a stage. Throws ArgumentError for places that leave a stage without children.
///
/// A stage has the children themselves; a replica that asks for it again has copies.
StageFactory sequential_stages(const torch::nn::Sequential& model, std::vector<std::size_t> begins = {});

}  // namespace pipewright
