#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <limits>
#include <set>

#include "frontend/graph/program.h"
#include "frontend/graph/uses.h"
#include "frontend/partition/element_count.h"
#include "pipewright/frontend/graph_module.h"
#include "pipewright/frontend/split.h"

namespace pipewright {
namespace {

/// Operations that a processor could do while it moves one element: tens on CPUs and GPUs alike.
constexpr double kOperationsPerElement = 16;
constexpr int kMeasurements = 3;

class Estimate {
 public:
  explicit Estimate(const Graph& graph) : graph_(graph) {}

  double of(const GraphNode& node) const {
    const auto op = c10::Dispatcher::singleton().findSchema({node.op, node.overload});
    if (!op || is_view(op->schema())) return 0;
    double elements = 0;
    for_each_use(node, [&](ValueId value) { elements += count(value); });
    for_each_output(node, [&](ValueId value) { elements += count(value); });
    return operations(node) + kOperationsPerElement * elements;
  }

 private:
  static bool is_view(const c10::FunctionSchema& schema) {
    const auto& returns = schema.returns();
    return !returns.empty() && std::ranges::all_of(returns, [](const c10::Argument& each) {
      return each.alias_info() && !each.alias_info()->isWrite();
    });
  }

  template <typename Visit>
  static void for_each_output(const GraphNode& node, Visit visit) {
    for (const auto& output : node.outputs) {
      for (const ValueId value : output) {
        if (value >= 0) visit(value);
      }
    }
  }

  const std::vector<std::int64_t>* sizes(const GraphNode& node, std::size_t argument) const {
    if (argument >= node.arguments.size()) return nullptr;
    const auto* value = std::get_if<ValueId>(&node.arguments[argument].is);
    const auto found = value ? graph_.recorded.find(*value) : graph_.recorded.end();
    return found == graph_.recorded.end() || found->second.sizes.empty() ? nullptr : &found->second.sizes;
  }

  double count(ValueId value) const {
    const auto found = graph_.recorded.find(value);
    return found == graph_.recorded.end() ? 0 : element_count(found->second.sizes);
  }

  /// Multiplications and additions, where these are more than one for each element.
  double operations(const GraphNode& node) const {
    double given = 0;
    for_each_output(node, [&](ValueId value) { given = std::max(given, count(value)); });
    const std::string name = node.op.substr(node.op.find(':') + 2);
    const auto is_one_of = [&](std::initializer_list<const char*> names) {
      return std::ranges::any_of(names, [&](const char* each) { return name == each; });
    };
    if (is_one_of({"linear", "mm", "bmm", "matmul", "addmm", "baddbmm"})) {
      const auto* left = sizes(node, name.starts_with("add") || name.starts_with("badd") ? 1 : 0);
      return left ? 2 * given * static_cast<double>(left->back()) : 0;
    }
    if (name.starts_with("conv")) {
      const auto* input = sizes(node, 0);
      const auto* weight = sizes(node, 1);
      if (!input || !weight) return 0;
      const bool transposed = name.starts_with("conv_transpose");
      return 2 * (transposed ? element_count(*input) : given) * element_count(*weight) /
             static_cast<double>(std::max<std::int64_t>(weight->front(), 1));
    }
    if (name == "scaled_dot_product_attention") {
      const auto* query = sizes(node, 0);
      const auto* key = sizes(node, 1);
      if (!query || !key || key->size() < 2) return 0;
      return 4 * element_count(*query) * static_cast<double>((*key)[key->size() - 2]);
    }
    if (is_one_of({"lstm", "gru", "rnn_tanh", "rnn_relu"})) return recurrent(node);
    return 0;
  }

  /// Every weight is used for every element of the sequences.
  double recurrent(const GraphNode& node) const {
    const auto* input = sizes(node, 0);
    if (!input) return 0;
    double weights = 0;
    for (const Argument& argument : node.arguments) {
      const auto* list = std::get_if<Argument::List>(&argument.is);
      if (!list) continue;
      for (const auto& item : list->items) {
        if (const auto* value = std::get_if<ValueId>(&item)) weights += count(*value);
      }
    }
    return 2 * weights * element_count(*input) /
           static_cast<double>(std::max<std::int64_t>(input->back(), 1));
  }

  const Graph& graph_;
};

}  // namespace

NodeCosts estimate_costs(const Graph& graph) {
  const Estimate estimate(graph);
  NodeCosts costs;
  costs.reserve(graph.nodes.size());
  for (const GraphNode& node : graph.nodes) costs.push_back(estimate.of(node));
  return costs;
}

NodeCosts measure_costs(const Graph& graph, const std::map<std::string, at::Tensor>& state,
                        const Values& inputs) {
  std::map<std::string, at::Tensor> copies = state;  // of what a forward may write to
  const at::AutoGradMode no_grad(false);
  for (const auto& [name, value] : graph.buffers) copies.at(name) = state.at(name).clone();
  GraphModule module(graph, copies);
  NodeCosts least(graph.nodes.size(), std::numeric_limits<double>::infinity());
  for (int trial = 0; trial < kMeasurements; ++trial) {
    const NodeCosts costs = module.time_forward(inputs);
    std::ranges::transform(least, costs, least.begin(), [](double a, double b) { return std::min(a, b); });
  }
  return least;
}

NodeCosts parameter_costs(const Graph& graph) {
  NodeCosts costs(graph.nodes.size());
  std::set<ValueId> unused;
  for (const auto& [name, value] : graph.parameters) unused.insert(value);
  for (std::size_t at = 0; at < graph.nodes.size(); ++at) {
    for_each_use(graph.nodes[at], [&](ValueId value) {
      if (unused.erase(value) == 0) return;
      const auto known = graph.recorded.find(value);
      if (known != graph.recorded.end()) costs[at] += element_count(known->second.sizes);
    });
  }
  return costs;
}

}  // namespace pipewright
