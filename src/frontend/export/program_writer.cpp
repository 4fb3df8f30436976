#include "frontend/export/program_writer.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <sstream>

#include "frontend/export/argument_writer.h"
#include "frontend/export/graph_writer.h"
#include "frontend/graph/number_operators.h"
#include "frontend/graph/uses.h"

namespace pipewright {
namespace {

const Json kLeaf = {{"type", nullptr}, {"context", nullptr}, {"children_spec", Json::array()}};

Json tuple_spec(Json children) {
  return {{"type", "builtins.tuple"}, {"context", "null"}, {"children_spec", std::move(children)}};
}

std::string spec_text(const Json& tree) { return Json::array({1, tree}).dump(); }

/// Names of modules and tensors are attributes in Python, where these cannot be.
void check_is_attribute(const std::string& name) {
  static const std::set<std::string> keywords = {
      "False", "None",     "True",  "and",    "as",   "assert", "async",  "await",    "break",
      "class", "continue", "def",   "del",    "elif", "else",   "except", "finally",  "for",
      "from",  "global",   "if",    "import", "in",   "is",     "lambda", "nonlocal", "not",
      "or",    "pass",     "raise", "return", "try",  "while",  "with",   "yield"};
  std::istringstream parts(name);
  for (std::string part; std::getline(parts, part, '.');) {
    if (keywords.contains(part))
      throw Error(c10::str("'", name, "' cannot be written: in Python nothing can be called '", part, "'"));
  }
}

class ProgramWriter {
 public:
  ProgramWriter(const Graph& graph, const ProgramDescription& description)
      : graph_(graph), description_(description), names_(graph, description) {
    for (std::size_t at = 0; at < graph.nodes.size(); ++at) {
      if (graph.nodes[at].op == kNumberOf) find_number(at);
    }
  }

  Json write() {
    write_state();
    write_inputs();
    write_outputs();
    Json graph = {{"inputs", std::move(inputs_)},
                  {"outputs", std::move(outputs_)},
                  {"nodes", nodes_json(graph_, skipped_, description_.module_types, names_)},
                  {"is_single_tensor_return", false}};
    graph.update(values_json(values_of_graph(), names_));
    graph["tensor_values"].update(more_values_);
    Json program = description_.program;
    keep_ranges(program["range_constraints"], graph);
    if (!has_names(graph_.inputs, description_.inputs)) program["guards_code"] = Json::array();
    program["graph_module"] = {
        {"graph", std::move(graph)},
        {"signature", {{"input_specs", std::move(input_specs_)}, {"output_specs", std::move(output_specs_)}}},
        {"module_call_graph", Json::array({{{"fqn", ""}, {"signature", call_signature()}}})},
        {"metadata", Json::object()},
        {"treespec_namedtuple_fields", Json::object()}};
    return program;
  }

 private:
  /// A number that comes in as a tensor here is a number in Python.
  void find_number(std::size_t at) {
    const GraphNode& node = graph_.nodes[at];
    const ValueId tensor = std::get<ValueId>(node.arguments.at(0).is);
    const ValueId number = node.outputs.at(0).at(0);
    if (names_.kind(number) != ValueKind::Integer) {
      throw Error("'" + names_.of(number) +
                  "', which goes from stage to stage, is no whole number: Python "
                  "cannot take it as an input; cut elsewhere");
    }
    numbers_[tensor] = number;
    skipped_.insert(at);
  }

  void add_input(Json spec, Json input) {
    input_specs_.push_back(std::move(spec));
    inputs_.push_back(std::move(input));
  }

  /// Each name is an input of its own; of those of one tensor, the first is used.
  std::string placeholder(ValueId value, std::set<ValueId>& seen, const std::string& name) {
    if (seen.insert(value).second) return names_.of(value);
    const std::string another = names_.fresh(name);
    more_values_[another] = names_.description(value).meta;
    return another;
  }

  void write_state() {
    std::set<ValueId> seen;
    for (const auto& [name, value] : graph_.parameters) {
      check_is_attribute(name);
      const Json argument = {{"name", placeholder(value, seen, "p_" + name)}};
      add_input({{"parameter", {{"arg", argument}, {"parameter_name", name_in_file(name)}}}},
                {{"as_tensor", argument}});
    }
    for (const auto* buffers : {&graph_.buffers, &graph_.borrowed_buffers}) {
      for (const auto& [name, value] : *buffers) {
        check_is_attribute(name);
        const Json argument = {{"name", placeholder(value, seen, "b_" + name)}};
        const bool persistent = !graph_.non_persistent_buffers.contains(name);
        add_input({{"buffer", {{"arg", argument}, {"buffer_name", name}, {"persistent", persistent}}}},
                  {{"as_tensor", argument}});
      }
    }
    for (const auto& [value, tensor] : graph_.constants) {
      const Json argument = {{"name", names_.of(value)}};
      add_input({{"tensor_constant", {{"arg", argument}, {"tensor_constant_name", constant_name(value)}}}},
                {{"as_tensor", argument}});
    }
  }

  void write_inputs() {
    for (const Graph::Port& port : graph_.inputs) {
      if (const auto* constant = std::get_if<c10::IValue>(&port.is)) {
        const Json value = constant_json(*constant);
        arguments_.push_back(names_.fresh(port.name));
        add_input({{"constant_input", {{"name", arguments_.back()}, {"value", value}}}}, value);
        continue;
      }
      const ValueId value = seen_by_python(std::get<ValueId>(port.is));
      if (names_.description(value).meta.dump().find("Symbol('u") != std::string::npos) {
        throw Error("'" + names_.of(value) +
                    "', which the stage takes, has a size that depends on data: Python cannot take it as an "
                    "input; cut elsewhere");
      }
      arguments_.push_back(names_.of(value));
      const Json argument = value_json(value, names_);
      add_input({{"user_input", {{"arg", argument}}}}, argument);
    }
  }

  ValueId seen_by_python(ValueId input) const {
    const auto number = numbers_.find(input);
    return number == numbers_.end() ? input : number->second;
  }

  void write_outputs() {
    const auto add = [this](Json spec, Json output) {
      output_specs_.push_back(std::move(spec));
      outputs_.push_back(std::move(output));
    };
    for (const auto& [name, value] : graph_.updated_buffers) {
      const Json argument = {{"name", names_.of(value)}};
      add({{"buffer_mutation", {{"arg", argument}, {"buffer_name", name}}}}, {{"as_tensor", argument}});
    }
    for (const Graph::Port& port : graph_.outputs) {
      const auto* value = std::get_if<ValueId>(&port.is);
      const Json argument =
          value ? value_json(seen_by_python(*value), names_) : constant_json(std::get<c10::IValue>(port.is));
      add({{"user_output", {{"arg", argument}}}}, argument);
    }
  }

  /// As the whole model has it where the ports are its own, otherwise positional.
  Json call_signature() const {
    Json signature = description_.call_signature;
    if (!has_names(graph_.inputs, description_.inputs)) {
      const Json positional = tuple_spec(std::vector<Json>(graph_.inputs.size(), kLeaf));
      const Json named = {{"type", "builtins.dict"}, {"context", "[]"}, {"children_spec", Json::array()}};
      signature["in_spec"] = spec_text(tuple_spec(Json::array({positional, named})));
      signature["forward_arg_names"] = arguments_;
    }
    if (!has_names(graph_.outputs, description_.outputs)) {
      signature["out_spec"] = spec_text(
          graph_.outputs.size() == 1 ? kLeaf : tuple_spec(std::vector<Json>(graph_.outputs.size(), kLeaf)));
    }
    signature["inputs"] = Json::array();
    signature["outputs"] = Json::array();
    return signature;
  }

  /// All but those inside of regions only, and numbers as the tensors that they come in.
  std::set<ValueId> values_of_graph() const {
    std::set<ValueId> values;
    for (const auto* named : {&graph_.parameters, &graph_.buffers, &graph_.borrowed_buffers}) {
      for (const auto& [name, value] : *named) values.insert(value);
    }
    for (const auto& [value, tensor] : graph_.constants) values.insert(value);
    for (const Graph::Port& port : graph_.inputs) {
      if (const auto* value = std::get_if<ValueId>(&port.is)) values.insert(seen_by_python(*value));
    }
    for (const GraphNode& node : graph_.nodes) {
      for (const auto& output : node.outputs) {
        for (const ValueId value : output) {
          if (value >= 0) values.insert(value);
        }
      }
    }
    return values;
  }

  /// Only those of sizes that the graph has.
  static void keep_ranges(Json& ranges, const Json& graph) {
    if (ranges.empty()) return;
    const std::string text = graph.dump();
    Json kept = Json::object();
    for (const auto& [symbol, range] : ranges.items()) {
      if (text.find("Symbol('" + symbol + "'") != std::string::npos) kept[symbol] = range;
    }
    ranges = std::move(kept);
  }

  const Graph& graph_;
  const ProgramDescription& description_;
  ValueNames names_;
  std::map<ValueId, ValueId> numbers_;  // by the tensor that each comes in
  std::set<std::size_t> skipped_;
  Json inputs_ = Json::array();
  Json input_specs_ = Json::array();
  Json outputs_ = Json::array();
  Json output_specs_ = Json::array();
  Json more_values_ = Json::object();
  std::vector<std::string> arguments_;
};

}  // namespace

bool has_names(const std::vector<Graph::Port>& ports, const std::vector<std::string>& names) {
  return !names.empty() && std::ranges::equal(ports, names, {}, &Graph::Port::name);
}

std::string name_in_file(const std::string& name) { return name.substr(0, name.find(kCopy)); }

std::string constant_name(ValueId value) { return "constant_" + std::to_string(value); }

Json program_json(const Graph& graph, const ProgramDescription& description) {
  return ProgramWriter(graph, description).write();
}

}  // namespace pipewright
