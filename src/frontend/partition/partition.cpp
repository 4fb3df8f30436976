#include "pipewright/frontend/partition.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "frontend/graph/aliases.h"
#include "frontend/graph/number_operators.h"
#include "frontend/graph/uses.h"
#include "frontend/partition/cut_points.h"
#include "pipewright/base/error.h"

namespace pipewright {
namespace {

bool gives_number(const GraphNode& node) {
  if (find_number_operator(node.op)) return true;
  const auto op = c10::Dispatcher::singleton().findSchema({node.op, node.overload});
  if (!op || op->schema().returns().empty()) return false;
  switch (op->schema().returns().front().type()->kind()) {
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::BoolType:
    case c10::TypeKind::NumberType: return true;
    default: return false;
  }
}

class Partitioner {
 public:
  Partitioner(const Graph& graph, const std::vector<std::size_t>& cuts, SharedParameters shared)
      : graph_(graph), cuts_(cuts), given_(graph.values.size(), -1), needed_(graph.values.size(), -1) {
    std::size_t before = 0;
    for (const std::size_t cut : cuts) {
      if (cut <= before || cut >= graph.nodes.size()) {
        throw ArgumentError("a cut at node " + std::to_string(cut) + " leaves a stage without nodes");
      }
      before = cut;
    }
    find_stages();
    if (shared == SharedParameters::Transmit) transmit_parameters();
    check_writes();
    find_writers();
    find_boundaries();
    for (const auto& [name, value] : graph.parameters) parameter_names_[value].push_back(name);
    for (const auto& [value, names] : parameter_names_) assign_names(value, names);
  }

  PartitionedGraph partition() {
    PartitionedGraph parts;
    for (int stage = 0; stage < stage_count(); ++stage) {
      parts.stages.push_back(make_stage(stage));
      parts.routes.push_back(routes_to(stage));
    }
    parts.tied = std::move(tied_);
    return parts;
  }

 private:
  int stage_count() const { return static_cast<int>(cuts_.size()) + 1; }
  std::size_t first_node(int stage) const {
    return stage == 0 ? 0 : cuts_[static_cast<std::size_t>(stage) - 1];
  }
  std::size_t end_node(int stage) const {
    return stage + 1 == stage_count() ? graph_.nodes.size() : cuts_[static_cast<std::size_t>(stage)];
  }
  int stage_of(std::size_t node) const {
    return static_cast<int>(std::ranges::upper_bound(cuts_, node) - cuts_.begin());
  }
  template <typename Visit>
  void for_each_node(Visit visit) const {
    for (int stage = 0; stage < stage_count(); ++stage) {
      for (std::size_t at = first_node(stage); at < end_node(stage); ++at) visit(graph_.nodes[at], stage);
    }
  }
  static std::size_t index(ValueId value) { return static_cast<std::size_t>(value); }

  /// Where each value is given, and where it is needed last.
  void find_stages() {
    for (const Graph::Port& port : graph_.inputs) {
      if (const auto* value = std::get_if<ValueId>(&port.is)) given_[index(*value)] = 0;
    }
    for_each_node([this](const GraphNode& node, int stage) {
      for_each_use(node, [&](ValueId value) {
        needed_[index(value)] = stage;
        users_[value].insert(stage);
      });
      for (const auto& output : node.outputs) {
        for (const ValueId value : output) {
          if (value < 0) continue;
          given_[index(value)] = stage;
          if (gives_number(node)) numbers_[value] = &node;
        }
      }
    });
    for (const Graph::Port& port : graph_.outputs) {
      const auto* value = std::get_if<ValueId>(&port.is);
      if (!value || given_[index(*value)] < 0) continue;
      needed_[index(*value)] = stage_count() - 1;
      outputs_.insert(*value);
    }
  }

  /// Parameters of several stages become values that the first of them gives.
  void transmit_parameters() {
    for (const auto& [name, value] : graph_.parameters) {
      const std::set<int>& stages = users_[value];
      if (stages.size() < 2) continue;
      given_[index(value)] = *stages.begin();
      transmitted_.insert(value);
    }
  }

  /// Values that share memory do not any more when they go to another stage, and a parameter or buffer is
  /// another tensor there. That must not matter: nobody writes to what is needed on both sides.
  void check_writes() const {
    const auto conflicts = cut_conflicts(graph_);
    for (const std::size_t cut : cuts_) {
      const auto& conflict = conflicts[cut];
      if (!conflict) continue;
      const std::string& name = graph_.values[index(conflict->first)];
      const std::string& other = graph_.values[index(conflict->second)];
      std::string what = name == other ? "uses of '" : "'";
      what.append(name).append("'");
      if (name != other) what.append(" and '").append(other).append("'");
      throw ArgumentError("a stage cannot begin at node " + std::to_string(cut) + ": " + what +
                          " share memory on both sides of it, which is written to; cut elsewhere");
    }
  }

  void find_writers() {
    const Aliases aliases(graph_);
    for (const Aliases::Written& written : aliases.written()) {
      for (const ValueId value : written.values) {
        for (const std::size_t node : written.writers) writers_[value].insert(stage_of(node));
      }
    }
  }

  /// Whether a stage uses a value of an earlier one.
  bool needs(int stage, ValueId value) const {
    if (given_[index(value)] < 0 || given_[index(value)] >= stage) return false;
    const auto users = users_.find(value);
    return (users != users_.end() && users->second.contains(stage)) ||
           (stage + 1 == stage_count() && outputs_.contains(value));
  }

  /// Whether it is sent to that stage.
  bool takes(int stage, ValueId value) const {
    return needs(stage, value) && !(numbers_.contains(value) && can_compute(stage, value));
  }

  /// The dimension of a tensor that a stage takes which is, whatever the sizes are, that number.
  std::optional<std::pair<ValueId, std::int64_t>> dimension_of(int stage, ValueId number) const {
    const auto wanted = graph_.expressions.find(number);
    if (wanted == graph_.expressions.end()) return std::nullopt;
    for (const auto& [tensor, known] : graph_.recorded) {
      if (numbers_.contains(tensor) || !needs(stage, tensor)) continue;
      const auto found = std::ranges::find(known.expressions, wanted->second);
      if (found != known.expressions.end()) return std::pair(tensor, found - known.expressions.begin());
    }
    return std::nullopt;
  }

  /// Whether a stage can find a number of an earlier one by itself, from tensors that it takes anyway.
  bool can_compute(int stage, ValueId number) const {
    if (dimension_of(stage, number)) return true;
    const GraphNode& node = *numbers_.at(number);
    if (!find_number_operator(node.op)) return false;
    bool all = true;
    for_each_use(node, [&](ValueId each) { all &= numbers_.contains(each) && can_compute(stage, each); });
    return all;
  }

  /// Nodes that give a number of an earlier stage once more. REQUIRES: can_compute.
  template <typename Add>
  void compute_again(int stage, ValueId number, Graph& part, std::map<ValueId, ValueId>& local,
                     Add add) const {
    if (local.contains(number)) return;
    if (const auto dimension = dimension_of(stage, number)) {
      GraphNode node;
      node.op = "aten::sym_size";
      node.overload = "int";
      node.arguments = {{local.at(dimension->first)}, {c10::IValue(dimension->second)}};
      node.outputs = {{add(number)}};
      part.nodes.push_back(std::move(node));
      return;
    }
    const GraphNode& node = *numbers_.at(number);
    for_each_use(node, [&](ValueId each) { compute_again(stage, each, part, local, add); });
    part.nodes.push_back(renamed(node, local, add));
  }

  /// Whom a stage takes a value from: who gives it, or the last before the stage that has written to it.
  int source(int stage, ValueId value) const {
    int from = given_[index(value)];
    if (const auto found = writers_.find(value); found != writers_.end()) {
      for (const int writer : found->second) {
        if (writer < stage && takes(writer, value)) from = std::max(from, writer);
      }
    }
    return from;
  }

  /// What each stage takes from earlier ones and gives to later ones.
  void find_boundaries() {
    inputs_.resize(static_cast<std::size_t>(stage_count()));
    given_on_.resize(inputs_.size());
    for (ValueId value = 0; std::cmp_less(value, given_.size()); ++value) {
      for (int stage = given_[index(value)] + 1; stage <= needed_[index(value)]; ++stage) {
        if (!takes(stage, value)) continue;
        inputs_[static_cast<std::size_t>(stage)].push_back(value);
        std::vector<ValueId>& given = given_on_[static_cast<std::size_t>(source(stage, value))];
        if (given.empty() || given.back() != value) given.push_back(value);
      }
    }
  }

  std::vector<Source> routes_to(int stage) const {
    std::vector<Source> routes;
    for (const ValueId value : inputs_[static_cast<std::size_t>(stage)]) {
      const int from = source(stage, value);
      const std::vector<ValueId>& given = given_on_[static_cast<std::size_t>(from)];
      const auto output = std::ranges::lower_bound(given, value) - given.begin();
      routes.push_back({.stage = from, .output = static_cast<std::size_t>(output)});
    }
    return routes;
  }

  /// Gives each stage that uses a parameter a name of its own for it, if there are several.
  void assign_names(ValueId value, std::vector<std::string> names) {
    std::vector<std::string> used;
    const std::set<int>& stages = users_[value];
    if (stages.empty()) names_[{value, 0}] = names;  // so that it is not lost
    for (const int stage : stages) {
      if (stages.size() == 1 || transmitted_.contains(value)) {
        names_[{value, stage}] = names;
        return;
      }
      const auto own = std::ranges::find_if(
          names, [&](const std::string& name) { return is_used_in(name, value, stage); });
      const auto chosen = own != names.end() ? own : names.begin();
      if (chosen == names.end()) {
        used.push_back(parameter_names_[value].front() + kCopy + std::to_string(stage));
        names_[{value, stage}] = {used.back()};
        continue;
      }
      names_[{value, stage}] = {*chosen};
      used.push_back(*chosen);
      names.erase(chosen);
    }
    if (used.size() > 1) tied_.push_back(used);
  }

  /// Whether the module that the name says uses the parameter on that stage.
  bool is_used_in(const std::string& name, ValueId value, int stage) const {
    const std::string module = name.substr(0, std::min(name.rfind('.'), name.size()));
    for (std::size_t at = first_node(stage); at < end_node(stage); ++at) {
      const GraphNode& node = graph_.nodes[at];
      bool uses = false;
      for_each_use(node, [&](ValueId each) { uses |= each == value; });
      if (uses && std::ranges::count(node.modules, module) > 0) return true;
    }
    return false;
  }

  Graph make_stage(int stage) {
    Graph part;
    std::map<ValueId, ValueId> local;
    const auto add = [&](ValueId value) {
      part.values.push_back(graph_.values[index(value)]);
      const auto own = static_cast<ValueId>(part.values.size()) - 1;
      if (const auto known = graph_.recorded.find(value); known != graph_.recorded.end()) {
        part.recorded[own] = known->second;
      }
      return local[value] = own;
    };
    add_state(stage, part, add);
    if (stage == 0) {
      for (const Graph::Port& port : graph_.inputs) {
        const auto* value = std::get_if<ValueId>(&port.is);
        part.inputs.push_back({port.name, value ? decltype(port.is)(add(*value)) : port.is});
      }
    } else {
      for (const ValueId value : inputs_[static_cast<std::size_t>(stage)]) add_input(value, part, add);
      for (const auto& [number, node] : numbers_) {
        if (needs(stage, number)) compute_again(stage, number, part, local, add);
      }
    }
    for (std::size_t at = first_node(stage); at < end_node(stage); ++at) {
      part.nodes.push_back(renamed(graph_.nodes[at], local, add));
    }
    if (stage + 1 == stage_count()) {
      for (const Graph::Port& port : graph_.outputs) {
        const auto* value = std::get_if<ValueId>(&port.is);
        part.outputs.push_back({port.name, value ? decltype(port.is)(local.at(*value)) : port.is});
      }
    } else {
      for (const ValueId value : given_on_[static_cast<std::size_t>(stage)]) {
        const std::string& name = graph_.values[index(value)];
        part.outputs.push_back(
            {name, transmitted_.contains(value) ? add_alias(local.at(value), part) : local.at(value)});
      }
    }
    for (const auto& [name, value] : graph_.updated_buffers) {
      if (given_[index(value)] == stage) part.updated_buffers[name] = local.at(value);
    }
    return part;
  }

  /// A parameter as something that a stage computes.
  static ValueId add_alias(ValueId parameter, Graph& part) {
    GraphNode node;
    node.op = "aten::alias";
    node.arguments = {{parameter}};
    node.outputs = {{static_cast<ValueId>(part.values.size())}};
    part.values.push_back(std::string(part.values[static_cast<std::size_t>(parameter)]).append(kSent));
    if (const auto known = part.recorded.find(parameter); known != part.recorded.end()) {
      part.recorded[node.outputs[0][0]] = Graph::Recorded(known->second);
    }
    part.nodes.push_back(std::move(node));
    return static_cast<ValueId>(part.values.size()) - 1;
  }

  template <typename Add>
  void add_state(int stage, Graph& part, Add add) {
    for (const auto& [value, names] : parameter_names_) {
      const auto own = names_.find({value, stage});
      if (own == names_.end()) continue;
      const ValueId id = add(value);
      for (const std::string& name : own->second) part.parameters[name] = id;
    }
    for (const auto& [name, value] : graph_.buffers) {
      const std::set<int>& stages = users_[value];
      const auto update = graph_.updated_buffers.find(name);
      const int home = update != graph_.updated_buffers.end() ? given_[index(update->second)]
                       : stages.empty()                       ? 0
                                                              : *stages.begin();
      if (stage != home && !stages.contains(stage)) continue;
      (stage == home ? part.buffers : part.borrowed_buffers)[name] = add(value);
      if (graph_.non_persistent_buffers.contains(name)) part.non_persistent_buffers.insert(name);
    }
    for (const auto& [value, tensor] : graph_.constants) {
      if (users_[value].contains(stage)) part.constants[add(value)] = tensor;
    }
  }

  /// What comes from an earlier stage: a tensor, from which a number is taken where it was one.
  template <typename Add>
  void add_input(ValueId value, Graph& part, Add add) {
    const std::string& name = graph_.values[index(value)];
    if (!numbers_.contains(value)) {
      part.inputs.push_back({name, add(value)});
      return;
    }
    part.values.push_back(name + ".tensor");
    const auto tensor = static_cast<ValueId>(part.values.size()) - 1;
    part.inputs.push_back({name, tensor});
    GraphNode number;
    number.op = kNumberOf;
    number.arguments = {{tensor}};
    number.outputs = {{add(value)}};
    part.nodes.push_back(std::move(number));
  }

  template <typename Add>
  static GraphNode renamed(GraphNode node, const std::map<ValueId, ValueId>& local, Add add) {
    for (Argument& argument : node.arguments) {
      if (auto* value = std::get_if<ValueId>(&argument.is)) *value = local.at(*value);
      if (auto* list = std::get_if<Argument::List>(&argument.is)) {
        for (auto& item : list->items) {
          if (auto* value = std::get_if<ValueId>(&item)) *value = local.at(*value);
        }
      }
    }
    for (auto& output : node.outputs) {
      for (ValueId& value : output) {
        if (value >= 0) value = add(value);
      }
    }
    return node;
  }

  const Graph& graph_;
  const std::vector<std::size_t>& cuts_;
  std::vector<int> given_;   // by value: the stage; −1 for state
  std::vector<int> needed_;  // likewise, the last
  std::map<ValueId, std::set<int>> users_;
  std::map<ValueId, std::set<int>> writers_;     // the stages that write to a value or what shares its memory
  std::set<ValueId> transmitted_;                // parameters
  std::set<ValueId> outputs_;                    // of the graph
  std::vector<std::vector<ValueId>> inputs_;     // by stage: what it takes from earlier ones, ascending
  std::vector<std::vector<ValueId>> given_on_;   // by stage: what later ones take from it, ascending
  std::map<ValueId, const GraphNode*> numbers_;  // with what gives them
  std::map<ValueId, std::vector<std::string>> parameter_names_;
  std::map<std::pair<ValueId, int>, std::vector<std::string>> names_;  // by the stage, too
  std::vector<std::vector<std::string>> tied_;
};

}  // namespace

PartitionedGraph partition(const Graph& graph, const std::vector<std::size_t>& cuts,
                           SharedParameters shared) {
  return Partitioner(graph, cuts, shared).partition();
}

}  // namespace pipewright
