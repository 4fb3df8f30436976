#pragma once

#include <string>
#include <vector>

#include "frontend/schema/json_fields.h"

namespace pipewright {

/// The names of what a model takes, one for each leaf of its arguments: by the names of its parameters, and
/// inside of lists and dictionaries `batch.ids`, `states.0`. `argument_names`: of the positional ones, as far
/// as they are known.
std::vector<std::string> input_names(const std::string& in_spec,
                                     const std::vector<std::string>& argument_names);

/// The same for what it returns: `0` for a single value, `logits` of a dictionary.
std::vector<std::string> output_names(const std::string& out_spec);

}  // namespace pipewright
