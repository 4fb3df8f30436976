#include "frontend/graph/number_operators.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "pipewright/base/error.h"

namespace pipewright {
namespace {

using Stack = std::vector<c10::IValue>;

double as_double(const c10::IValue& value) {
  if (value.isInt()) return static_cast<double>(value.toInt());
  if (value.isBool()) return value.toBool() ? 1 : 0;
  return value.toDouble();
}

bool are_integers(const c10::IValue& a, const c10::IValue& b) {
  return (a.isInt() || a.isBool()) && (b.isInt() || b.isBool());
}

std::int64_t as_integer(const c10::IValue& value) {
  return value.isBool() ? (value.toBool() ? 1 : 0) : value.toInt();
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  if (b == 0) throw Error("a size is divided by zero");
  const std::int64_t quotient = a / b;
  return quotient * b != a && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

/// On integers where both are, otherwise on doubles.
template <typename Integers, typename Doubles>
void apply(Stack& stack, Integers integers, Doubles doubles) {
  const c10::IValue b = stack.at(1);
  const c10::IValue a = stack.at(0);
  stack.clear();
  if (are_integers(a, b)) {
    stack.emplace_back(integers(as_integer(a), as_integer(b)));
  } else {
    stack.emplace_back(doubles(as_double(a), as_double(b)));
  }
}

template <typename Both>
void apply(Stack& stack, Both both) {
  apply(stack, both, both);
}

std::int64_t power(std::int64_t base, std::int64_t exponent) {
  std::int64_t result = 1;
  for (; exponent > 0; --exponent) result *= base;
  return result;
}

template <typename Round>
void round(Stack& stack, Round to) {
  const c10::IValue value = stack.at(0);
  stack.clear();
  stack.emplace_back(value.isInt() ? value.toInt() : static_cast<std::int64_t>(to(value.toDouble())));
}

void divide(Stack& stack) {
  const double a = as_double(stack.at(0));
  const double b = as_double(stack.at(1));
  if (b == 0) throw Error("a size is divided by zero");
  stack.assign(1, a / b);
}

void negate(Stack& stack) {
  const c10::IValue value = stack.at(0);
  stack.assign(1, value.isInt() ? c10::IValue(-value.toInt()) : c10::IValue(-value.toDouble()));
}

void negate_boolean(Stack& stack) { stack.assign(1, !stack.at(0).toBool()); }
void choose(Stack& stack) { stack.assign(1, c10::IValue(stack.at(0).toBool() ? stack.at(1) : stack.at(2))); }
void to_double(Stack& stack) { stack.assign(1, as_double(stack.at(0))); }

}  // namespace

NumberOperator find_number_operator(const std::string& name) {
  static const std::map<std::string, NumberOperator> operators = {
      {"_operator.add", [](Stack& stack) { apply(stack, [](auto a, auto b) { return a + b; }); }},
      {"_operator.sub", [](Stack& stack) { apply(stack, [](auto a, auto b) { return a - b; }); }},
      {"_operator.mul", [](Stack& stack) { apply(stack, [](auto a, auto b) { return a * b; }); }},
      {"_operator.floordiv",
       [](Stack& stack) {
         apply(stack, floor_divide, [](double a, double b) { return std::floor(a / b); });
       }},
      {"_operator.mod",
       [](Stack& stack) {
         apply(
             stack, [](std::int64_t a, std::int64_t b) { return a - floor_divide(a, b) * b; },
             [](double a, double b) { return a - std::floor(a / b) * b; });
       }},
      {"_operator.pow",
       [](Stack& stack) { apply(stack, power, [](double a, double b) { return std::pow(a, b); }); }},
      {"_operator.truediv", divide},
      {"_operator.neg", negate},
      {"_operator.eq", [](Stack& stack) { apply(stack, [](auto a, auto b) { return a == b; }); }},
      {"_operator.ne", [](Stack& stack) { apply(stack, [](auto a, auto b) { return a != b; }); }},
      {"_operator.lt", [](Stack& stack) { apply(stack, [](auto a, auto b) { return a < b; }); }},
      {"_operator.le", [](Stack& stack) { apply(stack, [](auto a, auto b) { return a <= b; }); }},
      {"_operator.gt", [](Stack& stack) { apply(stack, [](auto a, auto b) { return a > b; }); }},
      {"_operator.ge", [](Stack& stack) { apply(stack, [](auto a, auto b) { return a >= b; }); }},
      {"_operator.and_", [](Stack& stack) { stack.assign(1, stack.at(0).toBool() && stack.at(1).toBool()); }},
      {"_operator.or_", [](Stack& stack) { stack.assign(1, stack.at(0).toBool() || stack.at(1).toBool()); }},
      {"torch.sym_max", [](Stack& stack) { apply(stack, [](auto a, auto b) { return std::max(a, b); }); }},
      {"torch.sym_min", [](Stack& stack) { apply(stack, [](auto a, auto b) { return std::min(a, b); }); }},
      {kNumberOf, [](Stack& stack) { stack.assign(1, c10::IValue(stack.at(0).toTensor().item())); }},
      {kPipeSplit, [](Stack&) {}},
      {"torch.sym_not", negate_boolean},
      {"torch.sym_ite", choose},
      {"torch.sym_float", to_double},
      {"torch.sym_int", [](Stack& stack) { round(stack, [](double x) { return std::trunc(x); }); }},
      {"math.trunc", [](Stack& stack) { round(stack, [](double x) { return std::trunc(x); }); }},
      {"math.floor", [](Stack& stack) { round(stack, [](double x) { return std::floor(x); }); }},
      {"math.ceil", [](Stack& stack) { round(stack, [](double x) { return std::ceil(x); }); }}};
  const auto found = operators.find(name);
  return found == operators.end() ? nullptr : found->second;
}

bool is_on_numbers(const GraphNode& node) {
  return node.op == "aten::sym_size" || find_number_operator(node.op) != nullptr;
}

}  // namespace pipewright
