#pragma once

#include <ATen/core/function_schema.h>

namespace pipewright {

/// Whether an operator gives the program what is in a tensor, rather than a tensor.
bool gives_data_to_program(const c10::FunctionSchema& schema);

/// Whether what it gives is no tensor, but known from sizes and types alone.
bool gives_metadata(const c10::FunctionSchema& schema);

/// Whether it makes a tensor without any contents.
bool makes_unwritten(const c10::FunctionSchema& schema);

/// Whether it writes to an argument without looking at what is there.
bool overwrites(const c10::FunctionSchema& schema, const c10::Argument& argument);

}  // namespace pipewright
