#pragma once

#include <ATen/core/function_schema.h>

#include "frontend/export/value_names.h"

namespace pipewright {

/// `{"as_tensor": ...}`, `{"as_sym_int": ...}` of a value.
Json value_json(ValueId value, const ValueNames& names);

/// A constant by itself, `{"as_int": 3}`. Throws Error for one that the schema has no form for.
Json constant_json(const c10::IValue& constant);

/// What a node takes, as an operator's argument has it; `wanted` is null for operators without a schema.
Json argument_json(const Argument& argument, const c10::Argument* wanted, const ValueNames& names);

}  // namespace pipewright
