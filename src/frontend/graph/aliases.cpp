#include "frontend/graph/aliases.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <map>
#include <numeric>

#include "frontend/graph/effects.h"

namespace pipewright {
namespace {

/// Sets of values that are joined as one is seen to share memory with another.
class Sets {
 public:
  explicit Sets(std::size_t count) : parents_(count) { std::iota(parents_.begin(), parents_.end(), 0); }
  ValueId find(ValueId value) {
    while (parents_[index(value)] != value)
      value = parents_[index(value)] = parents_[index(parents_[index(value)])];
    return value;
  }
  void join(ValueId a, ValueId b) { parents_[index(find(a))] = find(b); }

 private:
  static std::size_t index(ValueId value) { return static_cast<std::size_t>(value); }
  std::vector<ValueId> parents_;
};

std::vector<ValueId> values_of(const Argument& argument) {
  std::vector<ValueId> values;
  if (const auto* value = std::get_if<ValueId>(&argument.is)) values.push_back(*value);
  if (const auto* list = std::get_if<Argument::List>(&argument.is)) {
    for (const auto& item : list->items) {
      if (const auto* value = std::get_if<ValueId>(&item)) values.push_back(*value);
    }
  }
  return values;
}

}  // namespace

Aliases::Aliases(const Graph& graph) {
  Sets sets(graph.values.size());
  std::map<ValueId, std::set<std::size_t>> writers;  // by any value of the set
  for (std::size_t at = 0; at < graph.nodes.size(); ++at) {
    const GraphNode& node = graph.nodes[at];
    const auto op = c10::Dispatcher::singleton().findSchema({node.op, node.overload});
    if (!op) continue;
    const c10::FunctionSchema& schema = op->schema();
    for (std::size_t input = 0; input < std::min(node.arguments.size(), schema.arguments().size()); ++input) {
      const bool is_data = node.op == kDataOf;
      const bool writes = is_written(schema, schema.arguments()[input]);
      if (!schema.arguments()[input].alias_info() && !writes && !is_data) continue;
      for (const ValueId value : values_of(node.arguments[input])) {
        if (writes) writers[value].insert(at);
        for (std::size_t output = 0; output < std::min(node.outputs.size(), schema.returns().size());
             ++output) {
          if (!schema.returns()[output].alias_info() && !is_data) continue;
          for (const ValueId result : node.outputs[output]) {
            if (result >= 0) sets.join(result, value);
          }
        }
      }
    }
  }
  std::map<ValueId, Written> by_set;
  for (const auto& [value, nodes] : writers)
    by_set[sets.find(value)].writers.insert(nodes.begin(), nodes.end());
  for (std::size_t value = 0; value < graph.values.size(); ++value) {
    const auto found = by_set.find(sets.find(static_cast<ValueId>(value)));
    if (found != by_set.end()) found->second.values.push_back(static_cast<ValueId>(value));
  }
  for (auto& [set, written] : by_set) written_.push_back(std::move(written));
}

}  // namespace pipewright
