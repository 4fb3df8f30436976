#pragma once

#include <torch/torch.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>

#include "runtime/models.h"

namespace pipewright {

/// What the tests' own code throws, so that it can be told from everything else.
struct Thrown : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct ThrowsInBackward : torch::autograd::Function<ThrowsInBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list) {
    throw Thrown("thrown in a backward");
  }
};

/// Where a model throws next; nowhere unless armed.
struct Fault {
  enum Place { Nowhere, Forward, InputGradient, WeightGradient };
  std::atomic<Place> place = Nowhere;
  std::atomic<int> layer = 0;
  std::atomic<Microbatch> microbatch = 0;

  void arm(Place where, int at, Microbatch when) {
    layer = at;
    microbatch = when;
    place = where;
  }
  bool hits(Place where, int at) const {
    return place == where && layer == at && microbatch == microbatch_now();
  }
};

/// Linear and tanh, with a fault in the forward, on the way to the input or on the way to the weight.
class Faulty : public Layer {
 public:
  Faulty(std::shared_ptr<Fault> fault, int layer) : fault_(std::move(fault)), layer_(layer) {
    weight_ = register_parameter("weight", torch::zeros({4, 4}));
  }
  Values forward(const Values& inputs) override {
    if (fault_->hits(Fault::Forward, layer_)) throw Thrown("thrown in a forward");
    at::Tensor weight = weight_;
    if (fault_->hits(Fault::WeightGradient, layer_)) weight = ThrowsInBackward::apply(weight);
    at::Tensor x = inputs.at(0).mm(weight);
    if (fault_->hits(Fault::InputGradient, layer_)) x = ThrowsInBackward::apply(x);
    return {torch::tanh(x)};
  }

 private:
  std::shared_ptr<Fault> fault_;
  int layer_;
  at::Tensor weight_;
};

/// As many layers as there are stages, of width 4.
inline Model faulty_model(const std::shared_ptr<Fault>& fault, Stage stages) {
  Model model = dropout();
  model.name = "Faulty";
  model.layers.clear();
  for (Stage stage = 0; stage < stages; ++stage) {
    model.layers.emplace_back([=] { return std::make_shared<Faulty>(fault, stage); });
  }
  return model;
}

}  // namespace pipewright
