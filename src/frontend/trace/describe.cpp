#include "frontend/trace/describe.h"

#include <c10/util/StringUtil.h>
#include <caffe2/serialize/versions.h>
#include <torch/version.h>

#include <algorithm>
#include <utility>

#include "frontend/graph/number_operators.h"
#include "frontend/schema/schema_numbers.h"
#include "frontend/trace/formula.h"

namespace pipewright {
namespace {

constexpr const char* kBatch = "s0";

/// As Python's sympy writes it.
std::string expression_of(const Formula& formula) {
  std::string text = c10::str("Symbol('", kBatch, "', positive=True, integer=True)");
  if (formula.divisor != 1) text = c10::str("FloorDiv(", text, ", Integer(", formula.divisor, "))");
  if (formula.factor != 1) text = c10::str("Mul(Integer(", formula.factor, "), ", text, ")");
  if (formula.addend != 0) text = c10::str("Add(", text, ", Integer(", formula.addend, "))");
  return text;
}

class Describer {
 public:
  Describer(const Graph& graph, const std::vector<Recording>& recordings)
      : graph_(graph), recordings_(recordings) {
    for (const Recording& each : recordings) batches_.push_back(each.sample.batch);
    for (const GraphNode& node : graph.nodes) {
      if (is_on_numbers(node) && !node.outputs.empty()) compute(node);
    }
  }

  ValueDescription describe(ValueId value) const {
    ValueDescription description;
    try {
      if (const auto number = numbers_.find(value); number != numbers_.end()) {
        describe_number(number->second, description);
      } else if (const auto constant = graph_.constants.find(value); constant != graph_.constants.end()) {
        const at::Tensor& tensor = constant->second;
        description.meta = tensor_meta_json(sizes_json(tensor.sizes()), sizes_json(tensor.strides()),
                                            tensor.scalar_type(), tensor.device());
      } else {
        description.meta = tensor_json(value);
      }
    } catch (const Error& error) {
      description.unknown = error.what();
    }
    return description;
  }

 private:
  /// The results of a node on numbers, in each of the recordings.
  void compute(const GraphNode& node) {
    std::vector<c10::IValue>& results = numbers_[node.outputs[0][0]];
    for (std::size_t which = 0; which < recordings_.size(); ++which) {
      if (const NumberOperator call = find_number_operator(node.op)) {
        std::vector<c10::IValue> stack;
        for (const Argument& argument : node.arguments) {
          const auto* value = std::get_if<ValueId>(&argument.is);
          stack.push_back(value ? numbers_.at(*value)[which] : std::get<c10::IValue>(argument.is));
        }
        call(stack);
        results.push_back(stack.front());
        continue;
      }
      const Graph::Recorded& tensor =
          recordings_[which].graph.recorded.at(std::get<ValueId>(node.arguments[0].is));
      results.emplace_back(
          tensor.sizes[static_cast<std::size_t>(std::get<c10::IValue>(node.arguments[1].is).toInt())]);
    }
  }

  Json number_json(const Numbers& of_each) const {
    if (std::ranges::all_of(of_each, [&](std::int64_t each) { return each == of_each[0]; }))
      return {{"as_int", of_each[0]}};
    const auto formula = fit(batches_, of_each);
    if (!formula) {
      throw Error(
          "its sizes depend on the data, or on the batch B in another way than a·B+b and B/k: without "
          "dynamic_batch they are fixed");
    }
    return {{"as_expr", {{"expr_str", expression_of(*formula)}, {"hint", {{"as_int", of_each[0]}}}}}};
  }

  /// Floats are whole numbers, too.
  void describe_number(const std::vector<c10::IValue>& of_each, ValueDescription& description) const {
    Numbers numbers;
    for (const c10::IValue& each : of_each) numbers.push_back(each.toScalar().toLong());
    description.kind = of_each[0].isInt() ? ValueKind::Integer : ValueKind::Float;
    description.meta = number_json(numbers);
    if (description.kind == ValueKind::Integer) return;
    const auto as_float = static_cast<double>(numbers[0]);
    if (!description.meta.contains("as_expr")) {
      description.meta = {{"as_float", as_float}};
      return;
    }
    Json& expression = description.meta["as_expr"];
    expression = {{"expr_str", "ToFloat(" + expression["expr_str"].get<std::string>() + ")"},
                  {"hint", {{"as_float", as_float}}}};
  }

  template <typename SizesOf>
  Json all_json(std::size_t dims, SizesOf sizes_of) const {
    Json all = Json::array();
    for (std::size_t dim = 0; dim < dims; ++dim) {
      Numbers numbers;
      for (const Recording& each : recordings_) numbers.push_back(sizes_of(each)[dim]);
      all.push_back(number_json(numbers));
    }
    return all;
  }

  Json tensor_json(ValueId value) const {
    const Graph::Recorded& first = recordings_.front().graph.recorded.at(value);
    for (const Recording& each : recordings_) {
      if (!each.placements.contains(value)) throw Error("it is no plain tensor");
      if (each.graph.recorded.at(value).sizes.size() != first.sizes.size())
        throw Error("how many dimensions it has depends on the data or the batch");
    }
    const std::size_t dims = first.sizes.size();
    return tensor_meta_json(
        all_json(dims, [&](const Recording& each) { return each.graph.recorded.at(value).sizes; }),
        all_json(dims, [&](const Recording& each) { return each.placements.at(value).strides; }), first.dtype,
        recordings_.front().placements.at(value).device);
  }

  const Graph& graph_;
  const std::vector<Recording>& recordings_;
  Numbers batches_;
  std::map<ValueId, std::vector<c10::IValue>> numbers_;  // of each recording one
};

}  // namespace

ProgramDescription describe(const Graph& graph, const ModelState& state,
                            const std::vector<Recording>& recordings) {
  const Describer describer(graph, recordings);
  ProgramDescription description;
  for (ValueId value = 0; std::cmp_less(value, graph.values.size()); ++value)
    description.values[graph.values[static_cast<std::size_t>(value)]] = describer.describe(value);
  for (const auto& [name, tensor] : state.parameters) {
    const auto value = static_cast<std::size_t>(graph.parameters.at(name));
    description.values.at(graph.values[value]).meta["requires_grad"] = tensor.requires_grad();
  }
  description.call_signature = Json::object();
  description.program = {{"schema_version", {{"major", kSchemaMajor}, {"minor", 0}}},
                         {"opset_version", {{"aten", caffe2::serialize::kMaxSupportedFileFormatVersion}}},
                         {"torch_version", TORCH_VERSION},
                         {"verifiers", {"TRAINING"}},
                         {"range_constraints", {{kBatch, {{"min_val", 1}, {"max_val", nullptr}}}}},
                         {"guards_code", Json::array()}};
  return description;
}

}  // namespace pipewright
