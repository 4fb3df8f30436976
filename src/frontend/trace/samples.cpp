#include "frontend/trace/samples.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>

#include <algorithm>

#include "pipewright/base/error.h"

namespace pipewright {
namespace {

std::optional<std::int64_t> batch_of(const Values& sample,
                                     const std::vector<std::optional<int>>& batch_dims) {
  for (std::size_t at = 0; at < sample.size(); ++at) {
    const std::optional<int> dim = batch_dims[at];
    if (dim) return sample[at].size(*dim);
  }
  return std::nullopt;
}

/// Numbers that are all of one sign, integers in another order: what a model decides by its data it may
/// decide otherwise.
Sample with_other_data(const Sample& sample, const std::vector<std::optional<int>>& batch_dims, double sign) {
  Sample other = sample;
  other.is_other_data = true;
  for (std::size_t at = 0; at < other.inputs.size(); ++at) {
    at::Tensor& input = other.inputs[at];
    const std::optional<int> dim = batch_dims[at];
    if (!input.defined()) continue;
    if (input.is_floating_point()) {
      input = input.abs() * sign;
    } else if (dim) {
      input = input.flip(*dim);
    }
  }
  return other;
}

}  // namespace

std::string Sample::text() const {
  return (batch == 0 ? "the sample" : "a batch of " + std::to_string(batch)) +
         (is_other_data ? " with other data" : "");
}

std::vector<std::optional<int>> batch_dims_of(const Values& sample, const TraceOptions& options) {
  std::vector<std::optional<int>> dims(sample.size());
  if (!options.dynamic_batch) return dims;
  if (options.batch_dims) {
    dims = *options.batch_dims;
    if (dims.size() != sample.size()) {
      throw ArgumentError("there are " + std::to_string(sample.size()) + " inputs, and batch dimensions of " +
                          std::to_string(dims.size()));
    }
    std::optional<std::int64_t> batch;
    for (std::size_t at = 0; at < dims.size(); ++at) {
      const std::optional<int> dim = dims[at];
      if (!dim) continue;
      const bool is_there = sample[at].defined() && *dim >= 0 && *dim < sample[at].dim();
      if (is_there && !batch) batch = sample[at].size(*dim);
      if (!is_there || sample[at].size(*dim) != batch) {
        throw ArgumentError("input " + std::to_string(at) + " has not the batch of the others" +
                            " in dimension " + std::to_string(*dim));
      }
    }
    return dims;
  }
  const auto first = std::ranges::find_if(
      sample, [](const at::Tensor& input) { return input.defined() && input.dim() > 0; });
  if (first == sample.end()) return dims;
  for (std::size_t at = 0; at < sample.size(); ++at) {
    const at::Tensor& input = sample[at];
    if (input.defined() && input.dim() > 0 && input.size(0) == first->size(0)) dims[at] = 0;
  }
  return dims;
}

Sample resized(const Values& sample, const std::vector<std::optional<int>>& batch_dims, std::int64_t batch) {
  Sample other{.inputs = sample, .batch = batch};
  for (std::size_t at = 0; at < sample.size(); ++at) {
    const std::optional<int> dim = batch_dims[at];
    if (!dim) continue;
    const std::int64_t rows = sample[at].size(*dim);
    const at::Tensor which =
        at::arange(batch, at::TensorOptions(at::kLong).device(sample[at].device())).remainder(rows);
    other.inputs[at] = sample[at].index_select(*dim, which);
  }
  return other;
}

std::vector<Sample> make_samples(const Values& sample, const std::vector<std::optional<int>>& batch_dims) {
  const at::NoGradGuard no_grad;
  const std::int64_t batch = batch_of(sample, batch_dims).value_or(0);
  std::vector<Sample> samples = {{.inputs = sample, .batch = batch}};
  for (const double sign : {1.0, -1.0}) samples.push_back(with_other_data(samples.front(), batch_dims, sign));
  if (!batch_of(sample, batch_dims)) return samples;
  if (batch == 0) throw ArgumentError("the sample's batch is empty");
  // Far enough apart that what is rounded up to a power of two or a multiple of sixteen is seen.
  constexpr std::int64_t kFar = 17;
  if (batch / 2 > 1) samples.push_back(resized(sample, batch_dims, batch / 2));
  samples.push_back(resized(sample, batch_dims, batch + 1));
  samples.push_back(resized(sample, batch_dims, 2 * batch + kFar));
  return samples;
}

}  // namespace pipewright
