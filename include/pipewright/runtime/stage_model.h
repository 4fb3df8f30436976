#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "pipewright/runtime/boundary.h"
#include "pipewright/runtime/forward_function.h"
#include "pipewright/runtime/values.h"

namespace pipewright {

/// Computes the weight gradients of one microbatch: one value for each of the
/// module's parameters, in their order; undefined for a parameter without.
using WeightGradient = std::function<Values()>;

/// The piece of the model that one stage computes: a forward function and the
/// module that owns its parameters, if it has any.
///
/// Made from a torch module (holder or shared pointer) or from anything that can
/// be called. `forward` may take tensors, optional tensors or one `Values`, and
/// return a tensor, an optional one, a tuple or pair of them, or `Values`.
/// It is called by one thread at a time, but not always by the same.
struct StageModel {
  /// An identity stage: hands its inputs on.
  StageModel() : forward([](const Values& values) { return values; }) {}

  template <typename M>
    requires std::is_base_of_v<torch::nn::Module, M>
  StageModel(std::shared_ptr<M> owner) : forward(forward_of(owner)), module(std::move(owner)) {}

  template <typename M>
  StageModel(const torch::nn::ModuleHolder<M>& holder) : StageModel(holder.ptr()) {}

  template <typename F>
    requires detail::Callable<F>
  StageModel(F function, std::shared_ptr<torch::nn::Module> owner = nullptr)
      : forward(make_forward(std::move(function))), module(std::move(owner)) {}

  std::function<Values(const Values&)> forward;
  std::shared_ptr<torch::nn::Module> module = {};

  /// What crosses the boundaries, checked on every microbatch. Where it is not
  /// given, the first microbatch of a step decides number, dtype and device of
  /// the values; shapes are free.
  std::optional<Boundary> inputs = {};
  std::optional<Boundary> outputs = {};

  /// Name of a parameter or buffer in the unsplit model, from its name in `module`.
  /// Not given: `<stage>.<name>`, as in a torch::nn::Sequential of the stages.
  std::function<std::string(const std::string&)> global_name = {};

  /// False: an I runs the whole backward and the W nothing.
  bool split_backward = true;

  /// For modules that compute weight gradients themselves, outside autograd:
  /// called after each forward of a training step; what it returns is called at W.
  std::function<WeightGradient()> dw_builder = {};

 private:
  template <typename M>
  static std::function<Values(const Values&)> forward_of(const std::shared_ptr<M>& owner) {
    M* module = owner.get();
    if constexpr (std::is_same_v<M, torch::nn::SequentialImpl>) {
      return make_forward([module](const at::Tensor& x) { return module->forward(x); });
    } else {
      return make_forward(detail::bind_forward(module, &M::forward));
    }
  }
};

/// Builds a stage's piece of the model; called for the stages of this process, once for each of its replicas.
using StageFactory = std::function<StageModel(Stage)>;

}  // namespace pipewright
