#pragma once

#include <vector>

#include "frontend/trace/recording.h"
#include "pipewright/frontend/trace.h"

namespace pipewright {

/// The dimension of each input that is the batch, if it has one. Throws ArgumentError for options that do not
/// fit.
std::vector<std::optional<int>> batch_dims_of(const Values& sample, const TraceOptions& options);

/// The sample itself; twice the same with other data; and, if batches may have any size, batches of other
/// sizes.
std::vector<Sample> make_samples(const Values& sample, const std::vector<std::optional<int>>& batch_dims);

/// Rows of the sample, again and again, as often as there are rows in the batch.
Sample resized(const Values& sample, const std::vector<std::optional<int>>& batch_dims, std::int64_t batch);

}  // namespace pipewright
