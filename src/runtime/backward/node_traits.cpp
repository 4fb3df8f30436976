#include "runtime/backward/node_traits.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <typeindex>
#include <unordered_set>

namespace pipewright {
namespace {

using namespace torch::autograd::generated;

template <typename... Nodes>
std::unordered_set<std::type_index> types() {
  return {std::type_index(typeid(Nodes))...};
}

bool contains(const std::unordered_set<std::type_index>& types, const torch::autograd::Node& node) {
  return types.contains(std::type_index(typeid(node)));
}

}  // namespace

bool computes_gradients_apart(const torch::autograd::Node& node) {
  static const auto set = types<AddmmBackward0, MmBackward0, BmmBackward0, BaddbmmBackward0, AddbmmBackward0,
                                AddmvBackward0, MvBackward0, ConvolutionBackward0, NativeLayerNormBackward0,
                                NativeGroupNormBackward0, NativeBatchNormBackward0>();
  return contains(set, node);
}

bool is_cheap(const torch::autograd::Node& node) {
  static const auto set =
      types<torch::autograd::AccumulateGrad, TBackward0, TransposeBackward0, PermuteBackward0, ViewBackward0,
            UnsafeViewBackward0, ReshapeAliasBackward0, ExpandBackward0, SqueezeBackward0, SqueezeBackward1,
            UnsqueezeBackward0, AliasBackward0, ToCopyBackward0, SliceBackward0, SelectBackward0,
            CloneBackward0>();
  return contains(set, node);
}

bool has_hooks(torch::autograd::Node& node) {
  return !node.tensor_pre_hooks().empty() || !node.pre_hooks().empty() || !node.post_hooks().empty() ||
         !node.retains_grad_hooks().empty() || node.tensor_post_acc_grad_hooks();
}

}  // namespace pipewright
