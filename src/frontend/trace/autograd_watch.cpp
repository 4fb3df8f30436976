#include "frontend/trace/autograd_watch.h"

#include <vector>

#include "pipewright/base/error.h"

namespace pipewright {
namespace {

/// Autograd's own nodes have plain names, such as `AddBackward0`; those of others the names of their types.
bool is_custom(const std::string& name) {
  if (name.find("CppNode<") != std::string::npos) return true;
  return name.find("::") != std::string::npos && !name.starts_with("torch::autograd::");
}

}  // namespace

template <typename Visit>
void AutogradWatch::walk(const at::Tensor& from, Visit visit) {
  if (!from.defined() || !from.requires_grad()) return;
  std::vector<NodePtr> left = {from.grad_fn()};
  while (!left.empty()) {
    const NodePtr node = std::move(left.back());
    left.pop_back();
    if (!node || !seen_.emplace(node.get(), node).second) continue;
    visit(*node);
    for (const auto& edge : node->next_edges()) left.push_back(edge.function);
  }
}

void AutogradWatch::check(const at::Tensor& tensor) {
  walk(tensor, [](const Node& node) {
    const std::string name = node.name();
    if (!is_custom(name)) return;
    throw Error("the model uses a custom autograd function, " + name +
                ": its backward is no operator, and would be lost; register it as an operator with an "
                "autograd kernel");
  });
}

void AutogradWatch::trust(const at::Tensor& tensor) {
  walk(tensor, [](const Node&) {});
}

void AutogradWatch::check_hooks() const {
  for (const auto& [address, node] : seen_) {
    // Of a parameter, they stay where they are.
    if (node->name() == "torch::autograd::AccumulateGrad") continue;
    if (node->pre_hooks().empty() && node->post_hooks().empty() && node->tensor_pre_hooks().empty()) continue;
    throw Error("the model registers a hook on the result of " + node->name() +
                " in its forward: it would be lost");
  }
}

}  // namespace pipewright
