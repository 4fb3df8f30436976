#pragma once

#include <map>
#include <string>
#include <vector>

#include "frontend/archive/archive.h"
#include "frontend/schema/json_fields.h"

namespace pipewright {

enum class ValueKind { Tensor, Integer, Float, Boolean };

/// What a file says of a value: its type, sizes and strides, or as which expression of sizes it is known.
struct ValueDescription {
  ValueKind kind = ValueKind::Tensor;
  Json meta;
  /// Why that cannot be said, where it cannot.
  std::string unknown = {};
};

/// The major version of torch.export's schema.
inline constexpr std::int64_t kSchemaMajor = 8;

/// What an exported program says beyond its graph: all that is needed to write it, or a part, again.
struct ProgramDescription {
  /// By the values' names in the graph.
  std::map<std::string, ValueDescription> values;
  /// The classes of modules, by name.
  std::map<std::string, std::string> module_types;
  /// What it takes and returns as trees, and the names of their leaves; no names where all is positional.
  Json call_signature;
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  /// The document without its graph: versions, the ranges of dynamic sizes, guards.
  Json program;
  /// A pickle of inputs that it was exported with.
  Archive::Bytes sample_inputs;
};

}  // namespace pipewright
