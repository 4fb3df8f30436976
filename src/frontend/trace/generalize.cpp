#include "frontend/trace/generalize.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "frontend/graph/unique_names.h"
#include "frontend/graph/uses.h"
#include "frontend/trace/formula.h"
#include "frontend/trace/same_bits.h"
#include "pipewright/base/error.h"

namespace pipewright {
namespace {

bool is_integer_list(const c10::IValue& value) { return value.isIntList(); }

/// Whether two constants are the same; numbers bit by bit.
bool is_same(const c10::IValue& a, const c10::IValue& b) {
  if (a.isDouble() && b.isDouble()) {
    return std::bit_cast<std::uint64_t>(a.toDouble()) == std::bit_cast<std::uint64_t>(b.toDouble());
  }
  if (a.isTensor() && b.isTensor()) return !a.toTensor().defined() && !b.toTensor().defined();
  if (a.isList() && b.isList()) {
    const auto left = a.toListRef();
    const auto right = b.toListRef();
    return std::ranges::equal(left, right, is_same);
  }
  if (a.isGenerator() && b.isGenerator()) return a.toGenerator() == b.toGenerator();
  if (a.isObject() || b.isObject() || a.isCapsule() || b.isCapsule()) return a.is(b);
  return a.tagKind() == b.tagKind() && a == b;
}

class Generalizer {
 public:
  explicit Generalizer(const std::vector<Recording>& recordings)
      : recordings_(recordings), first_(recordings.front()), graph_(first_.graph) {
    graph_.nodes.clear();
    for (const std::string& name : graph_.values) names_.give(name);
  }

  Graph generalize(std::vector<std::string>& notes) {
    check_lengths();
    for (std::size_t at = 0; at < first_.graph.nodes.size(); ++at) add_node(at);
    for (const Recording& other : recordings_) {
      const auto is_same_port = [](const Graph::Port& a, const Graph::Port& b) {
        const auto* left = std::get_if<ValueId>(&a.is);
        const auto* right = std::get_if<ValueId>(&b.is);
        return left && right ? *left == *right : !left && !right;
      };
      if (!std::ranges::equal(first_.graph.outputs, other.graph.outputs, is_same_port)) {
        throw Error("what the model returns" + depends_on(other));
      }
    }
    if (batch_ >= 0) graph_.nodes.insert(graph_.nodes.begin(), std::move(batch_node_));
    for (const auto& [value, constant] : first_.constants) {
      const bool is_held = graph_.constants.contains(value);
      std::ostringstream note;
      note << graph_.values[index(value)] << ": " << constant.contents.scalar_type() << ' '
           << constant.contents.sizes() << ", used by " << constant.user
           << (is_held
                   ? (constant.tensor.requires_grad() ? "; it requires a gradient and is no parameter" : "")
                   : "; a copy of what the forward makes");
      notes.push_back(note.str());
    }
    return std::move(graph_);
  }

 private:
  static std::size_t index(ValueId value) { return static_cast<std::size_t>(value); }
  static const Numbers& sizes_of(const Recording& recording, ValueId value) {
    return recording.graph.recorded.at(value).sizes;
  }

  /// Why a recording may differ from the first.
  std::string depends_on(const Recording& other) const {
    if (other.sample.batch != first_.sample.batch) {
      return " depends on the batch in a way that cannot be expressed (seen with " + first_.sample.text() +
             " and " + other.sample.text() + "); without dynamic_batch it is fixed";
    }
    return " depends on the data, or changes from call to call";
  }

  void check_lengths() const {
    for (const Recording& other : recordings_) {
      const auto& ours = first_.graph.nodes;
      const auto& theirs = other.graph.nodes;
      for (std::size_t at = 0; at < std::min(ours.size(), theirs.size()); ++at) {
        if (ours[at].op == theirs[at].op && ours[at].overload == theirs[at].overload) continue;
        throw Error("what the model calls" + depends_on(other) + ": its operator " + std::to_string(at) +
                    " is " + ours[at].op + " or " + theirs[at].op);
      }
      if (ours.size() == theirs.size()) continue;
      const auto& longer = ours.size() > theirs.size() ? ours : theirs;
      throw Error("how many operators the model calls" + depends_on(other) + ": " +
                  std::to_string(ours.size()) + " or " + std::to_string(theirs.size()) +
                  ", the first of the others is " + longer[std::min(ours.size(), theirs.size())].op);
    }
  }

  void add_node(std::size_t at) {
    node_at_ = at;
    GraphNode node = first_.graph.nodes[at];
    for (const Recording& other : recordings_) {
      const GraphNode& theirs = other.graph.nodes[at];
      if (!(theirs.modes == node.modes)) throw Error("the mode of " + node.op + depends_on(other));
      if (theirs.outputs != node.outputs) throw Error("what " + node.op + " gives" + depends_on(other));
      if (theirs.arguments.size() != node.arguments.size())
        throw Error("what " + node.op + " takes" + depends_on(other));
    }
    for_each_use(node, [this](ValueId value) {
      if (first_.constants.contains(value)) add_constant(value);
    });
    for (std::size_t argument = 0; argument < node.arguments.size(); ++argument) {
      generalize(node, argument);
    }
    graph_.nodes.push_back(std::move(node));
  }

  /// One that is the same tensor in every call stays that tensor. What is made anew is copied anew.
  void add_constant(ValueId value) {
    if (!seen_constants_.insert(value).second) return;
    const Recording::Constant& ours = first_.constants.at(value);
    bool is_held = true;
    for (const Recording& other : recordings_) {
      const auto found = other.constants.find(value);
      if (found == other.constants.end()) throw Error("what " + ours.user + " takes" + depends_on(other));
      is_held &= found->second.tensor.is_same(ours.tensor);
      if (has_same_bits(found->second.contents, ours.contents)) continue;
      throw Error(
          "a tensor that " + ours.user +
          " takes is no parameter, buffer, input or result of an operator, and its contents change from call "
          "to call. If it is the model's memory, register it as a buffer and write to it in place; if it "
          "comes from a parameter, compute it in the forward");
    }
    if (is_held) {
      graph_.constants[value] = ours.tensor;
      return;
    }
    if (ours.tensor.requires_grad()) {
      throw Error("a tensor that " + ours.user + " takes requires a gradient and is made anew in each call");
    }
    const ValueId kept = add_value(graph_.values[index(value)] + ".kept");
    graph_.constants[kept] = ours.contents;
    graph_.recorded[kept] = first_.graph.recorded.at(value);
    GraphNode clone;
    clone.op = "aten::clone";
    clone.arguments = {{kept}};
    clone.outputs = {{value}};
    clone.modes = first_.graph.nodes[node_at_].modes;
    graph_.nodes.push_back(std::move(clone));
  }

  std::string argument_name(const GraphNode& node, std::size_t argument) const {
    const auto op = c10::Dispatcher::singleton().findSchema({node.op, node.overload});
    return op ? "the argument '" + op->schema().arguments().at(argument).name() + "' of " + node.op : node.op;
  }

  void generalize(GraphNode& node, std::size_t argument) {
    Argument& ours = node.arguments[argument];
    const auto wrong = [&](const Recording& other) {
      throw Error(argument_name(node, argument) + depends_on(other));
    };
    const auto* constant = std::get_if<c10::IValue>(&ours.is);
    if (!constant) {
      for (const Recording& other : recordings_) {
        if (!is_same_value(ours, other.graph.nodes[node_at_].arguments[argument])) wrong(other);
      }
      return;
    }
    std::vector<c10::IValue> all;
    const Recording* different = nullptr;
    for (const Recording& other : recordings_) {
      const auto* theirs = std::get_if<c10::IValue>(&other.graph.nodes[node_at_].arguments[argument].is);
      if (!theirs) wrong(other);
      all.push_back(*theirs);
      if (!different && !is_same(*constant, *theirs)) different = &other;
    }
    if (!different) return;
    const auto all_are = [&](const auto& predicate) { return std::ranges::all_of(all, predicate); };
    if (all_are([](const c10::IValue& each) { return each.isInt(); })) {
      Numbers numbers;
      for (const c10::IValue& each : all) numbers.push_back(each.toInt());
      ours.is = number(node, argument, numbers);
    } else if (all_are([](const c10::IValue& each) {
                 return each.isDouble() && std::trunc(each.toDouble()) == each.toDouble() &&
                        std::abs(each.toDouble()) < 1e15;
               })) {
      Numbers numbers;
      for (const c10::IValue& each : all) numbers.push_back(static_cast<std::int64_t>(each.toDouble()));
      ours.is = call_on_numbers("torch.sym_float", {{number(node, argument, numbers)}});
    } else if (all_are(is_integer_list)) {
      ours.is = list(node, argument, all);
    } else {
      wrong(*different);
    }
  }

  Argument::List list(const GraphNode& node, std::size_t argument, const std::vector<c10::IValue>& all) {
    std::vector<Numbers> items(all.front().toIntVector().size());
    for (std::size_t which = 0; which < all.size(); ++which) {
      const std::vector<std::int64_t> theirs = all[which].toIntVector();
      if (theirs.size() != items.size())
        throw Error(argument_name(node, argument) + depends_on(recordings_[which]));
      for (std::size_t at = 0; at < items.size(); ++at) items[at].push_back(theirs[at]);
    }
    Argument::List list;
    for (const Numbers& numbers : items) {
      if (std::ranges::all_of(numbers, [&](std::int64_t each) { return each == numbers[0]; })) {
        list.items.emplace_back(c10::IValue(numbers[0]));
      } else {
        list.items.emplace_back(number(node, argument, numbers));
      }
    }
    return list;
  }

  static bool is_same_value(const Argument& a, const Argument& b) {
    if (a.is.index() != b.is.index()) return false;
    if (const auto* value = std::get_if<ValueId>(&a.is)) return *value == std::get<ValueId>(b.is);
    const auto is_same_item = [](const auto& left, const auto& right) {
      if (left.index() != right.index()) return false;
      const auto* value = std::get_if<ValueId>(&left);
      return value ? *value == std::get<ValueId>(right)
                   : is_same(std::get<c10::IValue>(left), std::get<c10::IValue>(right));
    };
    return std::ranges::equal(std::get<Argument::List>(a.is).items, std::get<Argument::List>(b.is).items,
                              is_same_item);
  }

  /// A value that is the number. First the sizes of what the node itself takes are tried, which are at hand
  /// on whatever stage it is; then the batch.
  ValueId number(const GraphNode& node, std::size_t argument, const Numbers& wanted) {
    for (const bool exactly : {true, false}) {
      std::optional<ValueId> found;
      for_each_use(node, [&](ValueId value) {
        if (!found) found = from_sizes(value, wanted, exactly);
      });
      if (found) return *found;
    }
    Numbers batches;
    for (const Recording& each : recordings_) batches.push_back(each.sample.batch);
    if (const auto formula = fit(batches, wanted)) return apply(*formula, batch());
    std::ostringstream message;
    message << argument_name(node, argument) << " is";
    for (std::size_t at = 0; at < recordings_.size(); ++at) {
      message << (at == 0 ? " " : ", ") << wanted[at] << " with " << recordings_[at].sample.text();
    }
    message << ": it depends on the batch, the data or earlier calls in a way that cannot be expressed "
               "(neither a size of a "
               "tensor that "
               "it takes, nor a·B+b)";
    throw Error(message.str());
  }

  std::optional<ValueId> from_sizes(ValueId value, const Numbers& wanted, bool exactly) {
    if (!first_.graph.recorded.contains(value)) return std::nullopt;  // a number that was added here
    const std::size_t dims = sizes_of(first_, value).size();
    for (const Recording& each : recordings_) {
      if (sizes_of(each, value).size() != dims) return std::nullopt;
    }
    for (std::size_t dim = 0; dim < dims; ++dim) {
      Numbers sizes;
      for (const Recording& each : recordings_) sizes.push_back(sizes_of(each, value)[dim]);
      if (exactly && sizes != wanted) continue;
      const auto formula = fit(sizes, wanted);
      if (formula) return apply(*formula, size(value, dim, graph_.nodes.emplace_back()));
    }
    return std::nullopt;
  }

  ValueId apply(const Formula& formula, ValueId number) {
    if (formula.divisor != 1) number = call_on_numbers("_operator.floordiv", {{number}, {formula.divisor}});
    if (formula.factor != 1) number = call_on_numbers("_operator.mul", {{number}, {formula.factor}});
    if (formula.addend != 0) number = call_on_numbers("_operator.add", {{number}, {formula.addend}});
    return number;
  }

  /// The size of the batch, from the first input that has one. Taken at the beginning: a stage that needs it
  /// gets the number, not the input.
  ValueId batch() {
    if (batch_ >= 0) return batch_;
    for (const Graph::Port& port : graph_.inputs) {
      const auto* value = std::get_if<ValueId>(&port.is);
      if (!value) continue;
      for (std::size_t dim = 0; dim < sizes_of(first_, *value).size(); ++dim) {
        if (std::ranges::any_of(recordings_, [&](const Recording& each) {
              return sizes_of(each, *value)[dim] != each.sample.batch;
            })) {
          continue;
        }
        return batch_ = size(*value, dim, batch_node_);
      }
    }
    throw Error("no input has the batch as a dimension");
  }

  /// Fills in `node`.
  ValueId size(ValueId value, std::size_t dim, GraphNode& node) {
    const ValueId result = add_value("size");
    node.op = "aten::sym_size";
    node.modes = first_.graph.nodes[node_at_].modes;
    node.overload = "int";
    node.arguments = {{value}, {c10::IValue(static_cast<std::int64_t>(dim))}};
    node.outputs = {{result}};
    return result;
  }

  ValueId call_on_numbers(const char* op, const std::vector<std::variant<ValueId, std::int64_t>>& arguments);

  ValueId add_value(const std::string& name) {
    graph_.values.push_back(names_.give(name));
    return static_cast<ValueId>(graph_.values.size()) - 1;
  }

  const std::vector<Recording>& recordings_;
  const Recording& first_;
  Graph graph_;
  UniqueNames names_;
  std::size_t node_at_ = 0;
  std::set<ValueId> seen_constants_;
  ValueId batch_ = -1;
  GraphNode batch_node_;
};

ValueId Generalizer::call_on_numbers(const char* op,
                                     const std::vector<std::variant<ValueId, std::int64_t>>& arguments) {
  GraphNode node;
  node.op = op;
  node.modes = first_.graph.nodes[node_at_].modes;
  for (const auto& each : arguments) {
    const auto* value = std::get_if<ValueId>(&each);
    node.arguments.push_back(value ? Argument{*value} : Argument{c10::IValue(std::get<std::int64_t>(each))});
  }
  const ValueId result = add_value("number");
  node.outputs = {{result}};
  graph_.nodes.push_back(std::move(node));
  return result;
}

}  // namespace

Graph generalize(const std::vector<Recording>& recordings, std::vector<std::string>& notes) {
  return Generalizer(recordings).generalize(notes);
}

}  // namespace pipewright
