#include "frontend/trace/recording.h"

namespace pipewright {

ModelState::ModelState(const torch::nn::Module* module) {
  if (!module) return;
  for (const auto& item : module->named_parameters()) {
    if (item.value().defined()) parameters.emplace_back(item.key(), item.value());
  }
  for (const auto& item : module->named_buffers()) {
    if (item.value().defined()) buffers.emplace_back(item.key(), item.value());
  }
}

}  // namespace pipewright
