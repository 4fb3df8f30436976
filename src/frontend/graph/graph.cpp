#include "pipewright/frontend/graph.h"

#include <functional>
#include <set>
#include <sstream>

#include "frontend/graph/uses.h"
#include "pipewright/base/error.h"

namespace pipewright {
namespace {

std::string constant_text(const c10::IValue& constant) {
  if (constant.isTensor()) {
    const at::Tensor& tensor = constant.toTensor();
    return tensor.defined() && tensor.dim() == 0 ? constant_text(c10::IValue(tensor.item())) : "a tensor";
  }
  std::ostringstream out;
  out << constant;
  return out.str();
}

class GraphText {
 public:
  explicit GraphText(const Graph& graph) : graph_(graph) {}

  std::string write() {
    const std::string root;
    const std::string* module = nullptr;
    write_ports("inputs", graph_.inputs);
    for (const GraphNode& node : graph_.nodes) {
      const std::string* own = node.modules.empty() ? &root : &node.modules.back();
      if (!module || *module != *own) out_ << "# " << (own->empty() ? "the model" : *own) << '\n';
      module = own;
      write_node(node);
    }
    write_ports("outputs", graph_.outputs);
    return out_.str();
  }

 private:
  std::string name(ValueId value) const {
    return value < 0 ? "_" : "%" + graph_.values[static_cast<std::size_t>(value)];
  }

  /// `: float[8, 4]`, where it is known.
  std::string shape(ValueId value) const {
    const auto found = graph_.recorded.find(value);
    if (found == graph_.recorded.end()) return "";
    std::ostringstream out;
    out << ": " << found->second.dtype << at::IntArrayRef(found->second.sizes);
    return out.str();
  }

  void write_ports(const char* title, const std::vector<Graph::Port>& ports) {
    out_ << title;
    for (const Graph::Port& port : ports) {
      out_ << ' ' << port.name << '=';
      if (const auto* value = std::get_if<ValueId>(&port.is)) {
        out_ << name(*value);
      } else {
        out_ << constant_text(std::get<c10::IValue>(port.is));
      }
    }
    out_ << '\n';
  }

  void write_node(const GraphNode& node) {
    const char* between = "";
    for (const auto& output : node.outputs) {
      for (const ValueId value : output) {
        out_ << between << name(value) << shape(value);
        between = ", ";
      }
    }
    out_ << (node.outputs.empty() ? "" : " = ") << node.op
         << (node.overload.empty() ? "" : "." + node.overload) << '(';
    between = "";
    for (const Argument& argument : node.arguments) {
      out_ << between << argument_text(argument);
      between = ", ";
    }
    out_ << ')' << (node.modes.grad.value_or(true) ? "" : "  # no grad")
         << (node.modes.autocast.empty() ? "" : "  # autocast") << '\n';
  }

  std::string argument_text(const Argument& argument) const {
    if (const auto* constant = std::get_if<c10::IValue>(&argument.is)) return constant_text(*constant);
    if (const auto* value = std::get_if<ValueId>(&argument.is)) return name(*value);
    std::string text;
    for (const auto& item : std::get<Argument::List>(argument.is).items) {
      const auto* value = std::get_if<ValueId>(&item);
      text +=
          (text.empty() ? "" : ", ") + (value ? name(*value) : constant_text(std::get<c10::IValue>(item)));
    }
    return "[" + text + "]";
  }

  const Graph& graph_;
  std::ostringstream out_;
};

}  // namespace

std::string to_text(const Graph& graph) { return GraphText(graph).write(); }

void check(const Graph& graph) {
  std::vector<bool> given(graph.values.size());
  const auto in_range = [&](ValueId value, const std::string& where) {
    if (value >= 0 && static_cast<std::size_t>(value) < given.size()) return;
    throw Error(where + " names value " + std::to_string(value) + " of " + std::to_string(given.size()));
  };
  const auto give = [&](ValueId value, const std::string& where) {
    in_range(value, where);
    if (given[static_cast<std::size_t>(value)]) {
      throw Error(where + " gives '" + graph.values[static_cast<std::size_t>(value)] +
                  "', which has been given before");
    }
    given[static_cast<std::size_t>(value)] = true;
  };
  const auto need = [&](ValueId value, const std::string& where) {
    in_range(value, where);
    if (!given[static_cast<std::size_t>(value)]) {
      throw Error(where + " needs '" + graph.values[static_cast<std::size_t>(value)] +
                  "' before it is given");
    }
  };
  std::set<ValueId> state;  // several names may be of one value
  for (const auto* named : {&graph.parameters, &graph.buffers, &graph.borrowed_buffers}) {
    for (const auto& [name, value] : *named) {
      if (state.insert(value).second) give(value, name);
    }
  }
  for (const auto& [value, tensor] : graph.constants) give(value, "a constant");
  for (const Graph::Port& port : graph.inputs) {
    if (const auto* value = std::get_if<ValueId>(&port.is)) give(*value, "input '" + port.name + "'");
  }
  for (const GraphNode& node : graph.nodes) {
    for_each_use(node, [&](ValueId value) { need(value, node.op); });
    for (const auto& output : node.outputs) {
      for (const ValueId value : output) {
        if (value >= 0) give(value, node.op);
      }
    }
  }
  for (const Graph::Port& port : graph.outputs) {
    if (const auto* value = std::get_if<ValueId>(&port.is)) need(*value, "output '" + port.name + "'");
  }
  for (const auto& [name, value] : graph.updated_buffers) need(value, "buffer '" + name + "'");
}

}  // namespace pipewright
