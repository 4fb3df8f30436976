#include "frontend/graph/program.h"

#include <ATen/ScalarOps.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "frontend/graph/uses.h"
#include "pipewright/base/error.h"

namespace pipewright {
namespace {

using IValues = std::vector<c10::IValue>;

/// A thread's autocast for one device, put back at the end.
class AutocastScope {
 public:
  explicit AutocastScope(const NodeModes::Autocast& wanted)
      : device_(wanted.device),
        enabled_(at::autocast::is_autocast_enabled(device_)),
        dtype_(at::autocast::get_autocast_dtype(device_)),
        cache_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::set_autocast_enabled(device_, wanted.enabled);
    if (wanted.dtype) at::autocast::set_autocast_dtype(device_, *wanted.dtype);
    at::autocast::set_autocast_cache_enabled(wanted.cache);
    at::autocast::increment_nesting();
  }
  ~AutocastScope() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, enabled_);
    at::autocast::set_autocast_dtype(device_, dtype_);
    at::autocast::set_autocast_cache_enabled(cache_);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  const at::DeviceType device_;
  const bool enabled_;
  const at::ScalarType dtype_;
  const bool cache_;
};

/// The scopes that are entered. One that goes on in the next region stays, with what it has cast.
class AutocastScopes {
 public:
  AutocastScopes() = default;
  ~AutocastScopes() { leave_until(0); }
  AutocastScopes(const AutocastScopes&) = delete;
  AutocastScopes& operator=(const AutocastScopes&) = delete;

  void enter(const std::vector<NodeModes::Autocast>& wanted) {
    const auto first_other = std::ranges::mismatch(entered_, wanted).in2;
    leave_until(static_cast<std::size_t>(first_other - wanted.begin()));
    for (auto each = first_other; each != wanted.end(); ++each) {
      entered_.push_back(*each);
      scopes_.push_back(std::make_unique<AutocastScope>(*each));
    }
  }

 private:
  void leave_until(std::size_t count) {
    while (scopes_.size() > count) {
      scopes_.pop_back();
      entered_.pop_back();
    }
  }

  std::vector<NodeModes::Autocast> entered_;
  std::vector<std::unique_ptr<AutocastScope>> scopes_;
};

at::Tensor number_as_tensor(const c10::IValue& number) {
  return at::native::wrapped_scalar_tensor(number.toScalar());
}

c10::TypePtr without_optional(const c10::TypePtr& type) {
  if (const auto optional = type->cast<c10::OptionalType>()) return optional->getElementType();
  return type;
}

bool is_number(const c10::IValue& value) { return value.isInt() || value.isDouble() || value.isBool(); }

/// A constant as an operator's argument takes it.
c10::IValue coerced(const c10::IValue& constant, const c10::Argument& argument) {
  const c10::TypePtr wanted = without_optional(argument.type());
  if (wanted->kind() == c10::TypeKind::ListType && constant.isInt()) {
    return c10::List<std::int64_t>(
        std::vector<std::int64_t>(static_cast<std::size_t>(argument.N().value_or(1)), constant.toInt()));
  }
  if (wanted->kind() == c10::TypeKind::TensorType && is_number(constant)) return number_as_tensor(constant);
  if (wanted->kind() == c10::TypeKind::FloatType && constant.isInt())
    return static_cast<double>(constant.toInt());
  return constant;
}

template <typename Item, typename Convert>
c10::List<Item> list_of(const IValues& items, Convert convert) {
  const c10::List<Item> list;
  list.reserve(items.size());
  for (const c10::IValue& item : items) list.push_back(convert(item));
  return list;
}

}  // namespace

GraphProgram::GraphProgram(const Graph& graph) {
  std::string unknown;
  for (const GraphNode& node : graph.nodes) {
    if (regions_.empty() || regions_.back().modes != node.modes) regions_.push_back({node.modes, {}});
    regions_.back().instructions.push_back(compile(node, unknown));
  }
  if (!unknown.empty()) throw Error("the graph has operators that are not known here:" + unknown);
  mark_last_uses(graph);
}

GraphProgram::Instruction GraphProgram::compile(const GraphNode& node, std::string& unknown) {
  if (const NumberOperator number = find_number_operator(node.op)) {
    Instruction instruction{.op = number, .arguments = {}, .outputs = node.outputs};
    for (const Argument& argument : node.arguments) {
      const auto* constant = std::get_if<c10::IValue>(&argument.is);
      instruction.arguments.emplace_back(constant
                                             ? Load{.constant = *constant}
                                             : Load{.constant = {}, .slot = std::get<ValueId>(argument.is)});
    }
    return instruction;
  }
  const auto found = c10::Dispatcher::singleton().findSchema({node.op, node.overload});
  if (!found) {
    unknown += "\n  " + node.op + (node.overload.empty() ? "" : "." + node.overload);
    if (!node.modules.empty()) unknown += " in " + node.modules.back();
    return {.op = NumberOperator(nullptr), .arguments = {}, .outputs = {}};
  }
  return {.op = *found, .arguments = loads_of(node, found->schema()), .outputs = node.outputs};
}

std::vector<GraphProgram::ArgumentLoad> GraphProgram::loads_of(const GraphNode& node,
                                                               const c10::FunctionSchema& schema) {
  const std::vector<c10::Argument>& wanted = schema.arguments();
  if (node.arguments.size() > wanted.size()) {
    throw Error(node.op + " takes " + std::to_string(wanted.size()) + " arguments, not " +
                std::to_string(node.arguments.size()));
  }
  std::vector<ArgumentLoad> loads;
  for (std::size_t at = 0; at < wanted.size(); ++at) {
    if (at < node.arguments.size()) {
      loads.push_back(load_of(node.arguments[at], wanted[at]));
    } else if (const auto& given = wanted[at].default_value()) {
      loads.emplace_back(Load{.constant = *given});
    } else {
      throw Error(node.op + " lacks its argument '" + wanted[at].name() + "'");
    }
  }
  return loads;
}

GraphProgram::ArgumentLoad GraphProgram::load_of(const Argument& argument, const c10::Argument& wanted) {
  if (const auto* constant = std::get_if<c10::IValue>(&argument.is))
    return Load{.constant = coerced(*constant, wanted)};
  const c10::TypePtr type = without_optional(wanted.type());
  if (const auto* value = std::get_if<ValueId>(&argument.is)) {
    const As as = type->kind() == c10::TypeKind::TensorType  ? As::Tensor
                  : type->kind() == c10::TypeKind::FloatType ? As::Double
                                                             : As::IsRight;
    return Load{.constant = {}, .slot = *value, .last = false, .as = as};
  }
  const auto list = type->cast<c10::ListType>();
  if (!list) throw Error("the argument '" + wanted.name() + "' of an operator is no list");
  ListLoad load{.of = list_kind(*list->getElementType()), .items = {}};
  for (const auto& item : std::get<Argument::List>(argument.is).items) {
    const auto* value = std::get_if<ValueId>(&item);
    load.items.push_back(value ? Load{.constant = {}, .slot = *value}
                               : Load{.constant = std::get<c10::IValue>(item)});
  }
  if (std::ranges::any_of(load.items, [](const Load& item) { return item.slot >= 0; })) return load;
  IValues no_slots;
  return Load{.constant = take(load, no_slots)};
}

GraphProgram::ListOf GraphProgram::list_kind(const c10::Type& element) {
  switch (element.kind()) {
    case c10::TypeKind::TensorType: return ListOf::Tensors;
    case c10::TypeKind::OptionalType: return ListOf::OptionalTensors;
    case c10::TypeKind::FloatType: return ListOf::Doubles;
    case c10::TypeKind::BoolType: return ListOf::Booleans;
    default: return ListOf::Integers;
  }
}

void GraphProgram::mark_last_uses(const Graph& graph) {
  std::set<ValueId> used;
  for (const Graph::Port& port : graph.outputs) {
    if (const auto* value = std::get_if<ValueId>(&port.is)) used.insert(*value);
  }
  for (const auto& [name, value] : graph.updated_buffers) used.insert(value);
  const auto mark = [&](Load& load) { load.last = load.slot >= 0 && used.insert(load.slot).second; };
  for (auto region = regions_.rbegin(); region != regions_.rend(); ++region) {
    for (auto instruction = region->instructions.rbegin(); instruction != region->instructions.rend();
         ++instruction) {
      // Of a value that is taken twice, the last in order of taking is the last use.
      for (auto argument = instruction->arguments.rbegin(); argument != instruction->arguments.rend();
           ++argument) {
        if (auto* load = std::get_if<Load>(&*argument)) {
          mark(*load);
        } else {
          auto& items = std::get<ListLoad>(*argument).items;
          for (auto item = items.rbegin(); item != items.rend(); ++item) mark(*item);
        }
      }
    }
  }
}

c10::IValue GraphProgram::take(const Load& load, IValues& slots) {
  if (load.slot < 0) return load.constant;
  c10::IValue& slot = slots[static_cast<std::size_t>(load.slot)];
  c10::IValue value = load.last ? std::exchange(slot, {}) : slot;
  if (load.as == As::Tensor && is_number(value)) return number_as_tensor(value);
  if (load.as == As::Double && value.isInt()) return static_cast<double>(value.toInt());
  return value;
}

c10::IValue GraphProgram::take(const ListLoad& load, IValues& slots) {
  IValues items;
  items.reserve(load.items.size());
  for (const Load& item : load.items) items.push_back(take(item, slots));
  switch (load.of) {
    case ListOf::Tensors:
      return list_of<at::Tensor>(items, [](const c10::IValue& item) { return item.toTensor(); });
    case ListOf::OptionalTensors:
      return list_of<std::optional<at::Tensor>>(
          items, [](const c10::IValue& item) -> std::optional<at::Tensor> {
            return item.isNone() ? std::nullopt : std::optional(item.toTensor());
          });
    case ListOf::Doubles:
      return list_of<double>(items, [](const c10::IValue& item) { return item.toScalar().toDouble(); });
    case ListOf::Booleans: return list_of<bool>(items, [](const c10::IValue& item) { return item.toBool(); });
    case ListOf::Integers: break;
  }
  return list_of<std::int64_t>(items, [](const c10::IValue& item) { return item.toInt(); });
}

void GraphProgram::run(const Instruction& instruction, IValues& slots, IValues& stack) {
  stack.clear();
  for (const ArgumentLoad& argument : instruction.arguments) {
    stack.push_back(std::visit([&](const auto& load) { return take(load, slots); }, argument));
  }
  if (const auto* op = std::get_if<c10::OperatorHandle>(&instruction.op)) {
    op->callBoxed(stack);
  } else {
    std::get<NumberOperator>(instruction.op)(stack);
  }
  for (std::size_t at = 0; at < instruction.outputs.size(); ++at) {
    const std::vector<ValueId>& values = instruction.outputs[at];
    if (values.size() == 1 && !stack[at].isTensorList()) {
      if (values[0] >= 0) slots[static_cast<std::size_t>(values[0])] = std::move(stack[at]);
      continue;
    }
    const c10::List<at::Tensor> list = stack[at].toTensorList();
    if (list.size() != values.size()) {
      throw Error("an operator gave " + std::to_string(list.size()) + " tensors where the graph has " +
                  std::to_string(values.size()));
    }
    for (std::size_t item = 0; item < values.size(); ++item) {
      if (values[item] >= 0) slots[static_cast<std::size_t>(values[item])] = at::Tensor(list.get(item));
    }
  }
}

template <typename After>
void GraphProgram::run_each(IValues& slots, After after) const {
  IValues stack;
  AutocastScopes autocast;
  for (const Region& region : regions_) {
    const at::AutoGradMode grad(region.modes.grad.value_or(at::GradMode::is_enabled()));
    autocast.enter(region.modes.autocast);
    for (const Instruction& instruction : region.instructions) {
      run(instruction, slots, stack);
      after();
    }
  }
}

void GraphProgram::run(IValues& slots) const {
  run_each(slots, [] {});
}

std::vector<double> GraphProgram::time(IValues& slots) const {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  Clock::time_point before = Clock::now();
  run_each(slots, [&] {
    const Clock::time_point now = Clock::now();
    seconds.push_back(std::chrono::duration<double>(now - std::exchange(before, now)).count());
  });
  return seconds;
}

}  // namespace pipewright
