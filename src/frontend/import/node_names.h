#pragma once

#include <string>
#include <utility>
#include <vector>

#include "frontend/schema/json_fields.h"

namespace pipewright {

/// The modules that a node was called in, outermost first: names and types.
std::vector<std::pair<std::string, std::string>> modules_of(const Json& node);

/// `torch.ops.aten.linear.default` is `aten::linear` without an overload; others keep their name.
std::pair<std::string, std::string> operator_name(const std::string& target);

}  // namespace pipewright
