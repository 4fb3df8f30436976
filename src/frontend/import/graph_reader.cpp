#include "frontend/import/graph_reader.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <set>
#include <utility>

#include "frontend/graph/number_operators.h"
#include "frontend/import/node_names.h"
#include "frontend/import/tree_names.h"
#include "frontend/schema/schema_numbers.h"

namespace pipewright {
namespace {

constexpr std::size_t kMostValues = 10'000'000;
constexpr int kDeepestRegion = 32;

class GraphReader {
 public:
  GraphReader(const Json& document, const std::map<std::string, at::Tensor>& constants)
      : module_(field(document, "graph_module")), constants_(constants) {}

  ReadProgram read() {
    const Json& graph = field(module_, "graph");
    current_ = &graph;
    const Json& signature = field(module_, "signature");
    read_inputs(list_field(graph, "inputs"), list_field(signature, "input_specs"));
    read_nodes(graph, 0);
    read_outputs(list_field(signature, "output_specs"));
    description_.call_signature = call_signature();
    for (const Graph::Port& port : graph_.inputs) description_.inputs.push_back(port.name);
    for (const Graph::Port& port : graph_.outputs) description_.outputs.push_back(port.name);
    return {std::move(graph_), std::move(description_)};
  }

 private:
  using Names = std::map<std::string, ValueId>;

  ValueId add_value(const std::string& name) {
    if (graph_.values.size() == kMostValues) throw ParseError("it has too many values");
    graph_.values.push_back(name);
    return static_cast<ValueId>(graph_.values.size()) - 1;
  }

  /// Regions have names of their own: those that are there already get a number.
  ValueId give(const std::string& name) {
    std::string unique = name;
    for (int number = 1; !taken_.insert(unique).second; ++number)
      unique = name + "." + std::to_string(number);
    describe(unique, name);
    const ValueId value = add_value(unique);
    if (const auto known = description_.values.find(unique); known != description_.values.end()) {
      if (known->second.kind == ValueKind::Tensor) record(value, known->second.meta);
      if (known->second.kind == ValueKind::Integer && known->second.meta.contains("as_expr")) {
        graph_.expressions[value] = text_field(known->second.meta["as_expr"], "expr_str");
      }
    }
    return names_[name] = value;
  }

  void record(ValueId value, const Json& meta) {
    Graph::Recorded tensor{.sizes = {}, .dtype = scalar_type_of(field(meta, "dtype"))};
    for (const Json& size : list_field(meta, "sizes")) {
      const auto [type, what] = only_field(size);
      if (type == "as_int") {
        tensor.sizes.push_back(integer_of_json(what));
        tensor.expressions.emplace_back();
        continue;
      }
      // A size that may change, with what it was.
      const Json& then = field(what, "hint");
      if (!then.is_object()) return;
      tensor.sizes.push_back(integer_of_json(field(then, "as_int")));
      tensor.expressions.push_back(text_field(what, "expr_str"));
    }
    for (const std::int64_t size : tensor.sizes) {
      if (size < 0) throw ParseError("a tensor has the size " + std::to_string(size));
    }
    graph_.recorded[value] = std::move(tensor);
  }

  void describe(const std::string& unique, const std::string& name) {
    for (const auto& [table, kind] : {std::pair("tensor_values", ValueKind::Tensor),
                                      {"sym_int_values", ValueKind::Integer},
                                      {"sym_float_values", ValueKind::Float},
                                      {"sym_bool_values", ValueKind::Boolean}}) {
      const auto values = current_->find(table);
      if (values == current_->end() || !values->is_object()) continue;
      if (const auto found = values->find(name); found != values->end()) {
        description_.values[unique] = {kind, *found};
        return;
      }
    }
  }

  ValueId value_of(const std::string& name) const {
    const auto found = names_.find(name);
    if (found == names_.end()) throw ParseError("it uses '" + name + "' before that is given");
    return found->second;
  }

  /// Of the model itself: what it takes and returns, as trees.
  const Json& call_signature() const {
    for (const Json& entry : list_field(module_, "module_call_graph")) {
      if (text_field(entry, "fqn").empty()) return field(entry, "signature");
    }
    throw ParseError("it does not say what the model takes and returns");
  }

  void read_inputs(const Json& inputs, const Json& specs) {
    if (inputs.size() != specs.size()) throw ParseError("its inputs and their description differ in number");
    const Json& call = call_signature();
    std::vector<std::string> arguments;
    if (const auto names = call.find("forward_arg_names"); names != call.end() && names->is_array()) {
      for (const Json& name : *names) arguments.push_back(text_of_json(name));
    }
    const std::vector<std::string> names = input_names(text_field(call, "in_spec"), arguments);
    std::size_t next = 0;
    const auto next_name = [&] {
      if (next == names.size()) throw ParseError("it has more inputs than the model takes");
      return names[next++];
    };
    for (const Json& spec : specs) {
      const auto [kind, what] = only_field(spec);
      if (kind == "parameter") {
        graph_.parameters[text_field(what, "parameter_name")] = give(text_field(field(what, "arg"), "name"));
      } else if (kind == "buffer") {
        const std::string name = text_field(what, "buffer_name");
        graph_.buffers[name] = give(text_field(field(what, "arg"), "name"));
        if (field(what, "persistent") == false) graph_.non_persistent_buffers.insert(name);
      } else if (kind == "tensor_constant") {
        const std::string name = text_field(what, "tensor_constant_name");
        const auto found = constants_.find(name);
        if (found == constants_.end()) throw ParseError("it has no tensor for the constant '" + name + "'");
        graph_.constants[give(text_field(field(what, "arg"), "name"))] = found->second;
      } else if (kind == "user_input") {
        const auto [type, argument] = only_field(field(what, "arg"));
        if (type != "as_tensor")
          throw Error("input '" + next_name() + "' is no tensor: only tensors can be passed");
        graph_.inputs.push_back({next_name(), give(text_field(argument, "name"))});
      } else if (kind == "constant_input") {
        const auto [type, constant] = only_field(field(what, "value"));
        graph_.inputs.push_back({next_name(), constant_of(type, constant)});
      } else {
        throw Error("inputs of kind '" + kind + "' are not supported");
      }
    }
  }

  void read_outputs(const Json& specs) {
    const std::vector<std::string> names = output_names(text_field(call_signature(), "out_spec"));
    std::size_t next = 0;
    for (const Json& spec : specs) {
      const auto [kind, what] = only_field(spec);
      if (kind == "user_output" || kind == "loss_output") {
        if (next == names.size()) throw ParseError("it has more outputs than the model returns");
        const auto [type, argument] = only_field(field(what, "arg"));
        if (type == "as_tensor") {
          graph_.outputs.push_back({names[next++], value_of(text_field(argument, "name"))});
        } else if (const Argument output = argument_of(field(what, "arg"));
                   std::holds_alternative<ValueId>(output.is)) {
          graph_.outputs.push_back({names[next++], std::get<ValueId>(output.is)});
        } else {
          graph_.outputs.push_back({names[next++], std::get<c10::IValue>(output.is)});
        }
      } else if (kind == "buffer_mutation") {
        graph_.updated_buffers[text_field(what, "buffer_name")] =
            value_of(text_field(field(what, "arg"), "name"));
      } else {
        throw Error("outputs of kind '" + kind + "' are not supported");
      }
    }
  }

  void read_nodes(const Json& graph, int depth) {
    if (depth > kDeepestRegion) throw ParseError("its regions are nested too deeply");
    for (const Json& node : list_field(graph, "nodes")) {
      const std::string target = text_field(node, "target");
      if (target == "torch.ops.higher_order.wrap_with_set_grad_enabled") {
        read_grad_region(node, depth);
      } else if (target == "torch.ops.higher_order.wrap_with_autocast") {
        read_autocast_region(node, depth);
      } else if (target == "torch.ops.aten._assert_tensor_metadata.default") {
        continue;  // of the machine where it was exported
      } else {
        read_node(node, target);
      }
    }
  }

  void read_grad_region(const Json& node, int depth) {
    const Json& inputs = list_field(node, "inputs");
    if (inputs.size() < 2) throw ParseError("a region without gradients lacks its arguments");
    const NodeModes before = modes_;
    modes_.grad = field(field(inputs[0], "arg"), "as_bool") == true;
    read_region(node, 1, depth);
    modes_ = before;
  }

  void read_autocast_region(const Json& node, int depth) {
    const Json& inputs = list_field(node, "inputs");
    constexpr std::size_t kGraph = 4;
    if (inputs.size() <= kGraph) throw ParseError("an autocast region lacks its arguments");
    const auto argument = [&](std::size_t at) { return only_field(field(inputs[at], "arg")); };
    NodeModes::Autocast autocast;
    autocast.device = device_of_json({{"type", text_of_json(argument(0).second)}, {"index", nullptr}}).type();
    if (argument(1).first == "as_scalar_type") autocast.dtype = scalar_type_of(argument(1).second);
    autocast.enabled = argument(2).second == true;
    autocast.cache = argument(3).second.is_boolean() ? argument(3).second.get<bool>() : true;
    const NodeModes before = modes_;
    modes_.autocast.push_back(autocast);
    read_region(node, kGraph, depth);
    modes_ = before;
  }

  /// A graph inside of a node, as if it stood there itself. Its names are its own.
  void read_region(const Json& node, std::size_t graph_at, int depth) {
    const Json& inputs = list_field(node, "inputs");
    const Json& graph = field(field(field(inputs[graph_at], "arg"), "as_graph"), "graph");
    const Json& inner_inputs = list_field(graph, "inputs");
    if (inner_inputs.size() != inputs.size() - graph_at - 1) {
      throw ParseError("a region takes other arguments than it is given");
    }
    Names inner;
    for (std::size_t at = 0; at < inner_inputs.size(); ++at) {
      const Argument outer = argument_of(field(inputs[graph_at + 1 + at], "arg"));
      if (!std::holds_alternative<ValueId>(outer.is))
        throw Error("a region is given something that is no value");
      inner[name_of(inner_inputs[at])] = std::get<ValueId>(outer.is);
    }
    std::swap(names_, inner);
    const Json* outer_graph = std::exchange(current_, &graph);
    read_nodes(graph, depth + 1);
    current_ = outer_graph;
    std::vector<ValueId> results;
    for (const Json& output : list_field(graph, "outputs")) results.push_back(value_of(name_of(output)));
    std::swap(names_, inner);
    std::vector<std::string> outputs;
    for (const Json& output : list_field(node, "outputs")) add_output_names(output, outputs);
    if (outputs.size() != results.size()) throw ParseError("a region gives other results than are taken");
    for (std::size_t at = 0; at < outputs.size(); ++at) names_[outputs[at]] = results[at];
  }

  /// The name of a value that is not a list.
  static std::string name_of(const Json& argument) {
    const auto [type, what] = only_field(argument);
    if (type == "as_tensor") return text_field(what, "name");
    if (type == "as_sym_int" || type == "as_sym_float" || type == "as_sym_bool")
      return text_field(what, "as_name");
    throw Error("a value of kind '" + type + "' is not supported here");
  }

  static void add_output_names(const Json& output, std::vector<std::string>& names) {
    const auto [type, what] = only_field(output);
    if (type == "as_tensors") {
      for (const Json& each : what) names.push_back(text_field(each, "name"));
    } else {
      names.push_back(name_of(output));
    }
  }

  void read_node(const Json& json, const std::string& target) {
    GraphNode node;
    std::tie(node.op, node.overload) = operator_name(target);
    node.modes = modes_;
    for (auto& [module, type] : modules_of(json)) {
      description_.module_types.emplace(module, std::move(type));
      node.modules.push_back(std::move(module));
    }
    node.arguments = arguments_of(node, list_field(json, "inputs"));
    for (const Json& output : list_field(json, "outputs")) node.outputs.push_back(read_output(output));
    graph_.nodes.push_back(std::move(node));
  }

  std::vector<ValueId> read_output(const Json& output) {
    const auto [type, what] = only_field(output);
    if (type == "as_none") return {-1};
    std::vector<std::string> names;
    if (type == "as_optional_tensor") {
      const auto [which, tensor] = only_field(what);
      if (which == "as_none") return {-1};
      names.push_back(text_field(tensor, "name"));
    } else {
      add_output_names(output, names);
    }
    std::vector<ValueId> values;
    values.reserve(names.size());
    for (const std::string& name : names) values.push_back(name.empty() ? -1 : give(name));
    return values;
  }

  /// In the order of the operator's schema, where it has one.
  std::vector<Argument> arguments_of(const GraphNode& node, const Json& inputs) {
    std::vector<Argument> arguments;
    const auto op = c10::Dispatcher::singleton().findSchema({node.op, node.overload});
    if (!op) {
      for (const Json& input : inputs) arguments.push_back(argument_of(field(input, "arg")));
      return arguments;
    }
    const auto& wanted = op->schema().arguments();
    std::map<std::string, Argument> given;
    for (const Json& input : inputs) {
      const std::string name = text_field(input, "name");
      given[name.empty() && given.size() < wanted.size() ? wanted[given.size()].name() : name] =
          argument_of(field(input, "arg"));
    }
    for (const c10::Argument& each : wanted) {
      if (const auto found = given.find(each.name()); found != given.end()) {
        arguments.push_back(std::move(found->second));
        given.erase(found);
      } else if (const auto& standard = each.default_value()) {
        arguments.push_back({*standard});
      } else {
        throw ParseError(node.op + " lacks its argument '" + each.name() + "'");
      }
    }
    if (!given.empty()) throw ParseError(node.op + " has no argument '" + given.begin()->first + "'");
    return arguments;
  }

  static c10::IValue constant_of(const std::string& type, const Json& what) {
    if (type == "as_none") return {};
    if (type == "as_int") return integer_of_json(what);
    if (type == "as_float") return number_of_json(what);
    if (type == "as_bool") return what == true;
    if (type == "as_string") return text_of_json(what);
    if (type == "as_scalar_type") return static_cast<std::int64_t>(scalar_type_of(what));
    if (type == "as_layout") return static_cast<std::int64_t>(layout_of(what));
    if (type == "as_memory_format") return static_cast<std::int64_t>(memory_format_of(what));
    if (type == "as_device") return device_of_json(what);
    if (type == "as_complex") {
      return c10::complex<double>(number_of_json(field(what, "real")), number_of_json(field(what, "imag")));
    }
    throw Error("an argument of kind '" + type + "' is not supported");
  }

  /// `{"as_name": ...}` or a number.
  std::variant<c10::IValue, ValueId> symbol_of(const Json& symbol) const {
    const auto [type, what] = only_field(symbol);
    if (type == "as_name") return value_of(text_of_json(what));
    return constant_of(type, what);
  }

  template <typename Item>
  static Argument list_of(const Json& items, Item item) {
    if (!items.is_array()) throw ParseError("it has something else where there must be a list");
    Argument::List list;
    for (const Json& each : items) list.items.push_back(item(each));
    return {std::move(list)};
  }

  Argument argument_of(const Json& argument) const {
    using ListItem = std::variant<c10::IValue, ValueId>;
    const auto [type, what] = only_field(argument);
    const auto tensor = [this](const Json& each) -> ListItem { return value_of(text_field(each, "name")); };
    if (type == "as_tensor") return {value_of(text_field(what, "name"))};
    if (type == "as_tensors") return list_of(what, tensor);
    if (type == "as_optional_tensor") return argument_of(what);
    if (type == "as_optional_tensors") {
      return list_of(what, [&](const Json& each) -> ListItem {
        const auto [which, optional] = only_field(each);
        return which == "as_none" ? ListItem(c10::IValue()) : tensor(optional);
      });
    }
    if (type == "as_sym_int" || type == "as_sym_float" || type == "as_sym_bool") {
      return std::visit([](const auto& is) { return Argument{is}; }, symbol_of(what));
    }
    if (type == "as_sym_ints" || type == "as_sym_floats" || type == "as_sym_bools") {
      return list_of(what, [this](const Json& each) { return symbol_of(each); });
    }
    for (const auto& [list, item] :
         {std::pair("as_ints", "as_int"), {"as_floats", "as_float"}, {"as_bools", "as_bool"}}) {
      if (type != list) continue;
      const std::string kind = item;
      return list_of(what, [&kind](const Json& each) -> ListItem { return constant_of(kind, each); });
    }
    return {constant_of(type, what)};
  }

  const Json& module_;
  const std::map<std::string, at::Tensor>& constants_;
  const Json* current_ = nullptr;  // the graph that is being read
  Graph graph_;
  ProgramDescription description_;
  Names names_;
  std::set<std::string> taken_;
  NodeModes modes_;
};

}  // namespace

ReadProgram read_graph(const Json& document, const std::map<std::string, at::Tensor>& constants) {
  return GraphReader(document, constants).read();
}

}  // namespace pipewright
