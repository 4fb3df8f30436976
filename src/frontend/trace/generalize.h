#pragma once

#include <string>
#include <vector>

#include "frontend/trace/recording.h"

namespace pipewright {

/// One graph that does what each of the recordings did: numbers that differ between them become values.
/// Throws Error where that cannot be: other operators, numbers that are no sizes, constants that change.
/// `notes`: gets a line for each constant.
Graph generalize(const std::vector<Recording>& recordings, std::vector<std::string>& notes);

}  // namespace pipewright
