#include "frontend/export/graph_writer.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "frontend/export/argument_writer.h"
#include "frontend/graph/number_operators.h"
#include "frontend/graph/uses.h"
#include "frontend/schema/schema_numbers.h"

namespace pipewright {
namespace {

constexpr int kPositional = 1;
constexpr int kKeyword = 2;

/// One of the modes that a node runs under.
using Mode = std::variant<bool, NodeModes::Autocast>;  // whether gradients are recorded, or autocast

std::vector<Mode> modes_of(const GraphNode& node) {
  std::vector<Mode> modes;
  if (node.modes.grad) modes.emplace_back(*node.modes.grad);
  modes.insert(modes.end(), node.modes.autocast.begin(), node.modes.autocast.end());
  return modes;
}

Json positional(Json argument) { return {{"name", ""}, {"arg", std::move(argument)}, {"kind", kPositional}}; }

/// `aten::linear` is `torch.ops.aten.linear.default`.
std::string target_of(const GraphNode& node) {
  const std::size_t colons = node.op.find("::");
  if (colons == std::string::npos) return node.op;
  return "torch.ops." + node.op.substr(0, colons) + "." + node.op.substr(colons + 2) + "." +
         (node.overload.empty() ? "default" : node.overload);
}

/// In the model itself.
bool is_outermost(const GraphNode& node) { return node.modules.empty() || node.modules.back().empty(); }

class NodeWriter {
 public:
  NodeWriter(const Graph& graph, const std::set<std::size_t>& skipped,
             const std::map<std::string, std::string>& module_types, ValueNames& names)
      : graph_(graph),
        skipped_(skipped),
        module_types_(module_types),
        names_(names),
        last_use_(graph.values.size(), 0) {
    for (std::size_t at = 0; at < graph.nodes.size(); ++at)
      for_each_use(graph.nodes[at], [&](ValueId value) { last_use_[index(value)] = at; });
    const auto needed_at_end = [&](ValueId value) { last_use_[index(value)] = graph.nodes.size(); };
    for (const Graph::Port& port : graph.outputs) {
      if (const auto* value = std::get_if<ValueId>(&port.is)) needed_at_end(*value);
    }
    for (const auto& [name, value] : graph.updated_buffers) needed_at_end(value);
  }

  Json write() { return write_range(0, graph_.nodes.size(), 0); }

 private:
  static std::size_t index(ValueId value) { return static_cast<std::size_t>(value); }

  /// Nodes that run under more modes than the `depth` outermost are gathered in regions.
  Json write_range(std::size_t begin, std::size_t end, std::size_t depth) {
    Json nodes = Json::array();
    for (std::size_t at = begin; at < end;) {
      if (skipped_.contains(at)) {
        ++at;
        continue;
      }
      const std::vector<Mode> modes = modes_of(graph_.nodes[at]);
      if (modes.size() <= depth) {
        // A mark is for whoever cuts the whole model, and Python has it only with its pipelining loaded.
        if (graph_.nodes[at].op != kPipeSplit) nodes.push_back(write_node(graph_.nodes[at]));
        ++at;
        continue;
      }
      const std::size_t first = at;
      while (at < end && !skipped_.contains(at)) {
        const std::vector<Mode> others = modes_of(graph_.nodes[at]);
        if (others.size() <= depth || others[depth] != modes[depth]) break;
        ++at;
      }
      nodes.push_back(write_region(first, at, depth, modes[depth]));
    }
    return nodes;
  }

  Json write_region(std::size_t begin, std::size_t end, std::size_t depth, const Mode& mode) {
    std::set<ValueId> given;
    std::vector<ValueId> taken;
    std::vector<ValueId> results;
    for (std::size_t at = begin; at < end; ++at) {
      for_each_use(graph_.nodes[at], [&](ValueId value) {
        if (!given.contains(value) && std::ranges::find(taken, value) == taken.end()) taken.push_back(value);
      });
      for (const auto& output : graph_.nodes[at].outputs) {
        for (const ValueId value : output) {
          if (value < 0) continue;
          given.insert(value);
          if (last_use_[index(value)] >= end) results.push_back(value);
        }
      }
    }
    // Python's verifier wants a result; where only what is written to counts, any.
    if (results.empty() && !given.empty()) results.push_back(*given.begin());
    std::set<ValueId> all = given;
    all.insert(taken.begin(), taken.end());
    Json inside = values_json(all, names_);
    inside["inputs"] = ports_json(taken);
    inside["outputs"] = ports_json(results);
    inside["nodes"] = write_range(begin, end, depth + 1);
    inside["is_single_tensor_return"] = false;

    Json node = mode_json(mode);
    node["inputs"].push_back(
        positional({{"as_graph", {{"name", names_.fresh("submod")}, {"graph", std::move(inside)}}}}));
    for (const ValueId value : taken) node["inputs"].push_back(positional(value_json(value, names_)));
    node["outputs"] = ports_json(results);
    node["metadata"] = metadata_of(graph_.nodes[begin]);
    node["is_hop_single_tensor_return"] = false;
    node["name"] = names_.fresh("region");
    return node;
  }

  /// The node that switches a mode, with its first arguments.
  static Json mode_json(const Mode& mode) {
    if (const auto* grad = std::get_if<bool>(&mode)) {
      return {{"target", "torch.ops.higher_order.wrap_with_set_grad_enabled"},
              {"inputs", Json::array({positional({{"as_bool", *grad}})})}};
    }
    const auto& autocast = std::get<NodeModes::Autocast>(mode);
    const Json dtype =
        autocast.dtype ? Json{{"as_scalar_type", number_of(*autocast.dtype)}} : Json{{"as_none", true}};
    return {
        {"target", "torch.ops.higher_order.wrap_with_autocast"},
        {"inputs",
         Json::array({positional({{"as_string", c10::DeviceTypeName(autocast.device, /*lower_case=*/true)}}),
                      positional(dtype), positional({{"as_bool", autocast.enabled}}),
                      positional({{"as_bool", autocast.cache}})})}};
  }

  Json ports_json(const std::vector<ValueId>& values) const {
    Json ports = Json::array();
    for (const ValueId value : values) {
      if (names_.kind(value) == ValueKind::Boolean) {
        throw Error("the truth value '" + names_.of(value) +
                    "' comes into or out of a region without gradients or with autocast, which Python cannot "
                    "read");
      }
      ports.push_back(value_json(value, names_));
    }
    return ports;
  }

  Json write_node(const GraphNode& node) {
    try {
      const auto op = c10::Dispatcher::singleton().findSchema({node.op, node.overload});
      if (!op && !find_number_operator(node.op)) throw Error("it is not known here");
      Json json = {{"target", target_of(node)},
                   {"inputs", op ? arguments_json(node, op->schema()) : number_arguments_json(node)},
                   {"outputs", outputs_json(node, op ? &op->schema() : nullptr)},
                   {"metadata", metadata_of(node)},
                   {"is_hop_single_tensor_return", nullptr}};
      // A node with one result is called as that is; others need a name of their own.
      const bool is_single = json["outputs"].size() == 1 && node.outputs[0].size() == 1 &&
                             node.outputs[0][0] >= 0 && !json["outputs"][0].contains("as_tensors");
      json["name"] =
          is_single ? names_.of(node.outputs[0][0]) : names_.fresh(node.op.substr(node.op.rfind(':') + 1));
      return json;
    } catch (const Error& error) {
      throw Error(node.op + (is_outermost(node) ? "" : " in " + node.modules.back()) + ": " + error.what());
    }
  }

  Json arguments_json(const GraphNode& node, const c10::FunctionSchema& schema) const {
    const std::vector<c10::Argument>& wanted = schema.arguments();
    if (node.arguments.size() > wanted.size()) throw Error("it has too many arguments");
    // Those at the end that are as the schema has them anyway are left out.
    const auto is_standard = [&](std::size_t at) {
      const auto* constant = std::get_if<c10::IValue>(&node.arguments[at].is);
      const auto& standard = wanted[at].default_value();
      return constant && standard && !constant->isTensor() && !standard->isTensor() && *constant == *standard;
    };
    std::size_t count = node.arguments.size();
    while (count > 0 && is_standard(count - 1)) --count;
    Json inputs = Json::array();
    for (std::size_t at = 0; at < count; ++at) {
      if (wanted[at].kwarg_only() && is_standard(at)) continue;
      inputs.push_back({{"name", wanted[at].name()},
                        {"arg", argument_json(node.arguments[at], &wanted[at], names_)},
                        {"kind", wanted[at].kwarg_only() ? kKeyword : kPositional}});
    }
    return inputs;
  }

  Json number_arguments_json(const GraphNode& node) const {
    Json inputs = Json::array();
    for (const Argument& argument : node.arguments)
      inputs.push_back(positional(argument_json(argument, nullptr, names_)));
    return inputs;
  }

  Json outputs_json(const GraphNode& node, const c10::FunctionSchema* schema) const {
    Json outputs = Json::array();
    for (std::size_t at = 0; at < node.outputs.size(); ++at) {
      const std::vector<ValueId>& values = node.outputs[at];
      const bool is_list = schema && at < schema->returns().size() &&
                           schema->returns()[at].type()->kind() == c10::TypeKind::ListType;
      if (!is_list) {
        if (values.size() != 1) throw Error("it gives a list where none is known");
        outputs.push_back(values[0] < 0 ? Json{{"as_none", true}} : value_json(values[0], names_));
        continue;
      }
      Json list = Json::array();
      for (const ValueId value : values) {
        if (value < 0) throw Error("it gives a list of which something is dropped");
        list.push_back({{"name", names_.of(value)}});
      }
      outputs.push_back({{"as_tensors", std::move(list)}});
    }
    return outputs;
  }

  /// `key,name,type;...`, outermost first.
  Json metadata_of(const GraphNode& node) const {
    std::string stack;
    for (const std::string& module : node.modules) {
      const auto type = module_types_.find(module);
      if (!stack.empty()) stack += ';';
      stack += c10::str("L__self__", module, ",", module, ",",
                        type == module_types_.end() ? "torch.nn.Module" : type->second);
    }
    // The last is how torch.export says that there is none.
    constexpr const char* kNone = "_empty_nn_module_stack_from_metadata_hook";
    return {{"nn_module_stack", stack.empty() ? c10::str(kNone, ",", kNone, ",", kNone) : stack}};
  }

  const Graph& graph_;
  const std::set<std::size_t>& skipped_;
  const std::map<std::string, std::string>& module_types_;
  ValueNames& names_;
  std::vector<std::size_t> last_use_;  // by value: the node
};

}  // namespace

Json nodes_json(const Graph& graph, const std::set<std::size_t>& skipped,
                const std::map<std::string, std::string>& module_types, ValueNames& names) {
  return NodeWriter(graph, skipped, module_types, names).write();
}

Json values_json(const std::set<ValueId>& values, const ValueNames& names) {
  Json tables = {{"tensor_values", Json::object()},
                 {"sym_int_values", Json::object()},
                 {"sym_float_values", Json::object()},
                 {"sym_bool_values", Json::object()},
                 {"custom_obj_values", Json::object()}};
  for (const ValueId value : values) {
    const ValueDescription& description = names.description(value);
    const char* table = description.kind == ValueKind::Tensor    ? "tensor_values"
                        : description.kind == ValueKind::Integer ? "sym_int_values"
                        : description.kind == ValueKind::Float   ? "sym_float_values"
                                                                 : "sym_bool_values";
    tables[table][names.of(value)] = description.meta;
  }
  return tables;
}

}  // namespace pipewright
