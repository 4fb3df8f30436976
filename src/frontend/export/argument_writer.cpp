#include "frontend/export/argument_writer.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "frontend/schema/schema_numbers.h"

namespace pipewright {
namespace {

using WrittenItem = std::variant<c10::IValue, ValueId>;

/// A tensor that is absent is none, too.
bool is_nothing(const c10::IValue& constant) {
  return constant.isNone() || (constant.isTensor() && !constant.toTensor().defined());
}

/// JSON has no form for some numbers: they are text.
Json float_json(double number) {
  if (std::isnan(number)) return "NaN";
  if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
  return number;
}

Json list_json(const char* kind, const std::vector<WrittenItem>& items, auto item_json) {
  Json list = Json::array();
  for (const WrittenItem& item : items) list.push_back(item_json(item));
  return {{kind, std::move(list)}};
}

double as_float(const c10::IValue& item) { return item.toScalar().toDouble(); }

/// Of tensors, where some may be missing if the operator takes them so.
Json tensors_json(const std::vector<WrittenItem>& items, bool optional, const ValueNames& names) {
  const auto tensor = [&](const WrittenItem& item) -> Json {
    const auto* value = std::get_if<ValueId>(&item);
    if (value && names.kind(*value) == ValueKind::Tensor) return {{"name", names.of(*value)}};
    throw Error("an operator takes a list of tensors in which something is none");
  };
  if (!optional) return list_json("as_tensors", items, tensor);
  return list_json("as_optional_tensors", items, [&](const WrittenItem& item) -> Json {
    const auto* constant = std::get_if<c10::IValue>(&item);
    if (constant && is_nothing(*constant)) return {{"as_none", true}};
    return {{"as_tensor", tensor(item)}};
  });
}

/// Of numbers, of which some are values.
Json symbols_json(const std::vector<WrittenItem>& items, ValueKind kind, const ValueNames& names) {
  const auto item_json = [&](const WrittenItem& item) -> Json {
    if (const auto* value = std::get_if<ValueId>(&item)) {
      if (names.kind(*value) != kind) throw Error("an operator takes a list of numbers of several kinds");
      return {{"as_name", names.of(*value)}};
    }
    const c10::IValue& constant = std::get<c10::IValue>(item);
    if (kind == ValueKind::Integer) return {{"as_int", constant.toInt()}};
    if (kind == ValueKind::Float) return {{"as_float", float_json(as_float(constant))}};
    return {{"as_bool", constant.toBool()}};
  };
  return list_json(kind == ValueKind::Integer ? "as_sym_ints"
                   : kind == ValueKind::Float ? "as_sym_floats"
                                              : "as_sym_bools",
                   items, item_json);
}

Json numbers_json(const std::vector<WrittenItem>& items) {
  const auto any = [&](auto is) {
    return std::ranges::any_of(items,
                               [&](const WrittenItem& item) { return is(std::get<c10::IValue>(item)); });
  };
  if (any([](const c10::IValue& item) { return !item.isInt() && !item.isDouble() && !item.isBool(); }))
    throw Error("an operator takes a list of constants that are no numbers, which cannot be written");
  if (any([](const c10::IValue& item) { return item.isDouble(); })) {
    return list_json("as_floats", items, [](const WrittenItem& item) -> Json {
      return float_json(as_float(std::get<c10::IValue>(item)));
    });
  }
  if (any([](const c10::IValue& item) { return item.isInt(); })) {
    return list_json("as_ints", items, [](const WrittenItem& item) -> Json {
      return std::get<c10::IValue>(item).toScalar().toLong();
    });
  }
  return list_json(items.empty() ? "as_ints" : "as_bools", items,
                   [](const WrittenItem& item) -> Json { return std::get<c10::IValue>(item).toBool(); });
}

c10::TypePtr inner_type(const c10::TypePtr& type) {
  const auto optional = type->cast<c10::OptionalType>();
  return optional ? optional->getElementType() : type;
}

Json items_json(const std::vector<WrittenItem>& items, const c10::Argument* wanted, const ValueNames& names) {
  const auto list = wanted ? inner_type(wanted->real_type())->cast<c10::ListType>() : nullptr;
  if (list && inner_type(list->getElementType())->kind() == c10::TypeKind::TensorType) {
    return tensors_json(items, list->getElementType()->kind() == c10::TypeKind::OptionalType, names);
  }
  for (const WrittenItem& item : items) {
    if (const auto* value = std::get_if<ValueId>(&item)) {
      return names.kind(*value) == ValueKind::Tensor ? tensors_json(items, /*optional=*/false, names)
                                                     : symbols_json(items, names.kind(*value), names);
    }
  }
  return numbers_json(items);
}

/// What the operator takes as a number that has a name: a dtype, a layout, a memory format.
Json enumerator_json(std::int64_t number, const c10::Argument* wanted) {
  switch (wanted ? inner_type(wanted->real_type())->kind() : c10::TypeKind::IntType) {
    case c10::TypeKind::ScalarTypeType:
      return {{"as_scalar_type", number_of(static_cast<c10::ScalarType>(number))}};
    case c10::TypeKind::LayoutType: return {{"as_layout", number_of(static_cast<c10::Layout>(number))}};
    case c10::TypeKind::MemoryFormatType:
      return {{"as_memory_format", number_of(static_cast<c10::MemoryFormat>(number))}};
    default: return {{"as_int", number}};
  }
}

}  // namespace

Json value_json(ValueId value, const ValueNames& names) {
  const std::string& name = names.of(value);
  switch (names.kind(value)) {
    case ValueKind::Tensor: return {{"as_tensor", {{"name", name}}}};
    case ValueKind::Integer: return {{"as_sym_int", {{"as_name", name}}}};
    case ValueKind::Float: return {{"as_sym_float", {{"as_name", name}}}};
    case ValueKind::Boolean: break;
  }
  return {{"as_sym_bool", {{"as_name", name}}}};
}

Json constant_json(const c10::IValue& constant) {
  if (is_nothing(constant)) return {{"as_none", true}};
  if (constant.isBool()) return {{"as_bool", constant.toBool()}};
  if (constant.isInt()) return {{"as_int", constant.toInt()}};
  if (constant.isDouble()) return {{"as_float", float_json(constant.toDouble())}};
  if (constant.isString()) return {{"as_string", constant.toStringRef()}};
  if (constant.isDevice()) return {{"as_device", json_of(constant.toDevice())}};
  if (constant.isComplexDouble()) {
    const c10::complex<double> number = constant.toComplexDouble();
    return {{"as_complex", {{"real", float_json(number.real())}, {"imag", float_json(number.imag())}}}};
  }
  std::ostringstream text;
  text << constant.tagKind();
  throw Error("a constant of kind " + text.str() + " cannot be written");
}

Json argument_json(const Argument& argument, const c10::Argument* wanted, const ValueNames& names) {
  if (const auto* value = std::get_if<ValueId>(&argument.is)) return value_json(*value, names);
  if (const auto* list = std::get_if<Argument::List>(&argument.is))
    return items_json(list->items, wanted, names);
  const c10::IValue& constant = std::get<c10::IValue>(argument.is);
  if (constant.isInt()) return enumerator_json(constant.toInt(), wanted);
  if (constant.isList()) {
    std::vector<WrittenItem> items;
    for (const c10::IValue& item : constant.toListRef()) items.emplace_back(item);
    return items_json(items, wanted, names);
  }
  return constant_json(constant);
}

}  // namespace pipewright
