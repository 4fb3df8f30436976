#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <vector>

#include "frontend/graph/number_operators.h"
#include "pipewright/frontend/graph.h"

namespace pipewright {

/// A graph made ready to run: operators looked up, constants as their schemas have them, values dropped after
/// their last use. Can be run by several threads at once.
class GraphProgram {
 public:
  /// Throws Error that lists every operator that is not known.
  explicit GraphProgram(const Graph& graph);

  /// `slots`: by value, what comes in, parameters, buffers and constants filled in; afterwards, what the
  /// outputs and buffers are.
  void run(std::vector<c10::IValue>& slots) const;
  /// The same, and the seconds that each node took.
  std::vector<double> time(std::vector<c10::IValue>& slots) const;

 private:
  /// What a value must become where an operator has another type: a number for a tensor, for example.
  enum class As { IsRight, Tensor, Double };
  enum class ListOf { Tensors, OptionalTensors, Integers, Doubles, Booleans };
  struct Load {
    c10::IValue constant;
    ValueId slot = -1;  // or a constant
    bool last = false;
    As as = As::IsRight;
  };
  struct ListLoad {
    ListOf of;
    std::vector<Load> items;
  };
  using ArgumentLoad = std::variant<Load, ListLoad>;
  struct Instruction {
    std::variant<c10::OperatorHandle, NumberOperator> op;
    std::vector<ArgumentLoad> arguments;
    std::vector<std::vector<ValueId>> outputs;
  };
  struct Region {
    NodeModes modes;
    std::vector<Instruction> instructions;
  };

  static Instruction compile(const GraphNode& node, std::string& unknown);
  static std::vector<ArgumentLoad> loads_of(const GraphNode& node, const c10::FunctionSchema& schema);
  static ArgumentLoad load_of(const Argument& argument, const c10::Argument& wanted);
  static ListOf list_kind(const c10::Type& element);
  void mark_last_uses(const Graph& graph);
  template <typename After>
  void run_each(std::vector<c10::IValue>& slots, After after) const;
  static c10::IValue take(const Load& load, std::vector<c10::IValue>& slots);
  static c10::IValue take(const ListLoad& load, std::vector<c10::IValue>& slots);
  static void run(const Instruction& instruction, std::vector<c10::IValue>& slots,
                  std::vector<c10::IValue>& stack);

  std::vector<Region> regions_;
};

}  // namespace pipewright
