#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "pipewright/base/ids.h"

namespace pipewright {

/// A value of a graph: what comes in, a parameter or buffer, or what a node gives.
using ValueId = std::int32_t;

/// What a node takes: a constant, a value, or a list in which each may be either.
struct Argument {
  struct List {
    std::vector<std::variant<c10::IValue, ValueId>> items;
  };
  std::variant<c10::IValue, ValueId, List> is;
};

/// Under which of the thread's modes a node runs.
struct NodeModes {
  /// Whether gradients are recorded; not given: as the caller has it.
  std::optional<bool> grad;
  struct Autocast {
    at::DeviceType device = at::kCPU;
    std::optional<at::ScalarType> dtype;
    bool enabled = true;
    bool cache = true;
    friend bool operator==(const Autocast&, const Autocast&) = default;
  };
  /// Those that are entered, outermost first.
  std::vector<Autocast> autocast;

  friend bool operator==(const NodeModes&, const NodeModes&) = default;
};

/// A call of an operator.
struct GraphNode {
  /// `aten::linear`, overload ``; or one of Python's on numbers, `_operator.mul`, without an overload.
  std::string op;
  std::string overload;
  /// In the order of the operator's schema; those at the end that it has defaults for may be missing.
  std::vector<Argument> arguments;
  /// Of an output that nobody uses, −1. An output that is a list is given item by item.
  std::vector<std::vector<ValueId>> outputs;
  NodeModes modes;
  /// The modules that it was called in, outermost first, by their names in the whole model; the last is its
  /// own.
  std::vector<std::string> modules;
};

/// What operators a model runs, in order, each value given once. Nothing in it depends on where it came from.
struct Graph {
  std::vector<std::string> values;  ///< Names, for people.
  std::vector<GraphNode> nodes;
  /// What the caller brings, and what he gets, with the names that he knows them by.
  struct Port {
    std::string name;
    /// A number that is always the same, or nothing, where there is no value.
    std::variant<ValueId, c10::IValue> is;
  };
  std::vector<Port> inputs;
  std::vector<Port> outputs;
  /// By the names in the whole model. Several names may be of one tensor.
  std::map<std::string, ValueId> parameters;
  std::map<std::string, ValueId> buffers;
  /// Buffers of other parts of the model that are read here, too.
  std::map<std::string, ValueId> borrowed_buffers;
  /// Names of buffers that are no part of a state dict.
  std::set<std::string> non_persistent_buffers;
  std::map<ValueId, at::Tensor> constants;
  /// What tensors were when the model was exported or traced. Sizes that may change are those of then.
  struct Recorded {
    std::vector<std::int64_t> sizes;
    at::ScalarType dtype = at::kFloat;
    /// For each size that may change, the expression that it is; empty for others. Equal texts are of equal
    /// sizes, always.
    std::vector<std::string> expressions = {};
  };
  std::map<ValueId, Recorded> recorded;
  /// Of numbers that are sizes, likewise.
  std::map<ValueId, std::string> expressions;
  /// Buffers that get a new value with each call: by name, the value that it is.
  std::map<std::string, ValueId> updated_buffers;
};

/// Between a parameter's name and the stage, in the name of a copy of it there.
inline constexpr char kCopy = '@';

/// Behind a parameter's name, in that of the value by which it is sent to later stages.
inline constexpr std::string_view kSent = ".sent";

/// A line a node, as people read it.
std::string to_text(const Graph& graph);

/// Throws Error that says what is wrong: a value used before it is given, given twice, or out of range.
void check(const Graph& graph);

}  // namespace pipewright
