#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pipewright/runtime/microbatch.h"
#include "pipewright/runtime/pipeline.h"
#include "pipewright/runtime/stage_model.h"

namespace pipewright {

/// One layer of a test model: from values to values, whatever their number.
class Layer : public torch::nn::Module {
 public:
  virtual Values forward(const Values& inputs) = 0;
};
using LayerFactory = std::function<std::shared_ptr<Layer>()>;

/// A model that can be run whole, or cut anywhere between its layers.
struct Model {
  std::string name;
  std::vector<LayerFactory> layers;
  Loss loss;
  /// The data of so many microbatches.
  std::function<std::vector<MicrobatchValues>(Microbatch)> data;
  std::vector<std::vector<std::string>> tied = {};
};

/// Layers `first` to `last` (not included) of a model in a row. Their names `l0`, `l1`, … and
/// the values of the parameters depend on the place in the whole model alone.
class Slice : public torch::nn::Module {
 public:
  Slice(const Model& model, std::size_t first, std::size_t last);
  Values forward(const Values& inputs);

 private:
  std::vector<std::shared_ptr<Layer>> layers_;
};

/// The model in so many stages of about equally many layers; more stages than
/// layers leave identity stages.
StageFactory cut(const Model& model, Stage stages);

/// The microbatch that a layer is called for: the pipeline's, or the one that the
/// loop over the whole model has announced.
Microbatch microbatch_now();
void announce_microbatch(Microbatch microbatch);

/// Where the models and their data are: the CPU, or what PIPEWRIGHT_TEST_DEVICE names.
at::Device test_device();
/// While it lives, they are on another.
class OnDevice {
 public:
  explicit OnDevice(at::Device device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  at::Device before_;
};

/// A tensor of ordinary numbers, on that device, that depend on the seed alone.
at::Tensor numbers(std::uint64_t seed, at::IntArrayRef sizes);

/// Linear and tanh.
LayerFactory dense(std::int64_t inputs, std::int64_t outputs);
/// A layer without parameters.
LayerFactory function(std::function<Values(const Values&)> f);
/// A module with a forward from one tensor to one tensor.
template <typename Holder, typename... Arguments>
LayerFactory wrap(Arguments... arguments);

/// The mean square of what lies between the first output and the first target.
at::Tensor squared_error(const Values& outputs, const Values& targets);

/// Eight dense layers with boundaries that all differ in width.
Model mlp();
/// A transformer whose embedding and head are one parameter.
Model gpt();
/// Boundaries of five values: a float, a bool mask, an int64 index, a value that is
/// absent in every other microbatch, and one that needs no gradient.
Model many_values();
/// Dropout, seeded by microbatch and layer.
Model dropout();
/// Frozen layers at the front, in the middle and at the end, and one with a frozen weight.
Model frozen();
/// Every weight is used twice.
Model used_twice();
/// Three layers, one without parameters: most stages have nothing to do.
Model sparse();

/// All of them.
std::vector<Model> every_model();

template <typename Holder>
class Wrapped : public Layer {
 public:
  explicit Wrapped(Holder inner) : inner_(register_module("inner", std::move(inner))) {}
  Values forward(const Values& inputs) override { return {inner_->forward(inputs.at(0))}; }

 private:
  Holder inner_;
};

template <typename Holder, typename... Arguments>
LayerFactory wrap(Arguments... arguments) {
  return [=] { return std::make_shared<Wrapped<Holder>>(Holder(arguments...)); };
}

}  // namespace pipewright
