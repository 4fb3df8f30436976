#pragma once

#include <ATen/core/function_schema.h>

namespace pipewright {

/// `data()` of a tensor: shares its memory, though the operator's schema does not say so.
inline constexpr const char* kDataOf = "aten::data";

/// Whether an operator writes to an argument. Normalisations with running statistics do, though their schemas
/// do not say so.
inline bool is_written(const c10::FunctionSchema& schema, const c10::Argument& argument) {
  if (argument.alias_info()) return argument.alias_info()->isWrite();
  return schema.name().ends_with("_norm") &&
         (argument.name() == "running_mean" || argument.name() == "running_var");
}

}  // namespace pipewright
