#include "runtime/optim/parameters.h"

#include <ATen/core/grad_mode.h>

#include <unordered_set>

#include "pipewright/base/error.h"
#include "pipewright/runtime/boundary.h"

namespace pipewright {

std::string global_name(Stage stage, const StageModel& model, const std::string& name) {
  return model.global_name ? model.global_name(name) : std::to_string(stage) + "." + name;
}

std::vector<LocalParameter> whole_parameters(const StageModels& models) {
  std::vector<LocalParameter> parameters;
  std::unordered_set<const void*> seen;
  for (const auto& [stage, model] : models) {
    if (!model.module) continue;
    for (const auto& item : model.module->named_parameters()) {
      if (!seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
      parameters.push_back({.name = global_name(stage, model, item.key()),
                            .tensor = item.value(),
                            .sizes = item.value().sizes().vec(),
                            .stage = stage});
    }
  }
  return parameters;
}

Pipeline::StateDict state_of(const StageModels& models) {
  Pipeline::StateDict state;
  for (const auto& [stage, model] : models) {
    if (!model.module) continue;
    const auto add = [&](const auto& items) {
      for (const auto& item : items) {
        const std::string name = global_name(stage, model, item.key());
        const auto [found, is_new] = state.emplace(name, item.value());
        if (is_new || found->second.is_same(item.value())) continue;
        throw ArgumentError("two tensors are called '" + name + "', the second on stage " +
                            std::to_string(stage) +
                            "; give the stages' global_name distinct names, and tie "
                            "parameters that are meant to be one");
      }
    };
    add(model.module->named_parameters());
    add(model.module->named_buffers());
  }
  return state;
}

std::string load_problems(const Pipeline::StateDict& values, const Pipeline::StateDict& state,
                          const std::set<std::string>& elsewhere) {
  std::string wrong;
  for (const auto& [name, tensor] : state) {
    const auto found = values.find(name);
    if (found == values.end()) {
      wrong += "\n  missing: " + name;
    } else if (!found->second.defined() || found->second.sizes() != tensor.sizes()) {
      wrong += "\n  " + name + ": expected " + to_text(tensor) + ", got " + to_text(found->second);
    }
  }
  for (const auto& [name, value] : values) {
    if (!state.contains(name) && !elsewhere.contains(name)) wrong += "\n  unknown: " + name;
  }
  return wrong.empty() ? wrong : "the state does not fit the model:" + wrong;
}

void load_state(const Pipeline::StateDict& values, const Pipeline::StateDict& state) {
  const at::AutoGradMode no_grad(false);
  for (const auto& [name, tensor] : state) tensor.copy_(values.at(name));
}

}  // namespace pipewright
