#include "pipewright/runtime/microbatch.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <string>
#include <utility>

#include "pipewright/base/error.h"
#include "pipewright/runtime/boundary.h"

namespace pipewright {
namespace {

/// As equal as whole numbers can be, the larger ones first.
std::vector<std::int64_t> chunk_sizes(std::int64_t size, std::int64_t chunks) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(chunks), size / chunks);
  std::fill_n(sizes.begin(), size % chunks, size / chunks + 1);
  return sizes;
}

std::vector<at::Tensor> split_value(const at::Tensor& value, Chunk chunk, Microbatch microbatches,
                                    const std::string& name) {
  if (!value.defined() || chunk.replicated) {
    return std::vector<at::Tensor>(static_cast<std::size_t>(microbatches), value);
  }
  if (chunk.dim < -value.dim() || chunk.dim >= value.dim()) {
    throw ArgumentError(name + " is " + to_text(value) + " and cannot be split along dimension " +
                        std::to_string(chunk.dim) + "; give it another Chunk, or replicate it");
  }
  if (value.size(chunk.dim) < microbatches) {
    throw ArgumentError(name + " is " + to_text(value) + ": dimension " + std::to_string(chunk.dim) +
                        " is too short for " + std::to_string(microbatches) +
                        " microbatches; use a larger batch or a schedule with fewer microbatches");
  }
  return value.split_with_sizes(chunk_sizes(value.size(chunk.dim), microbatches), chunk.dim);
}

/// Splits each value and hands the parts to the list that `of` finds in a microbatch.
template <typename Of>
void split_values(const Values& values, const std::vector<Chunk>& chunks, const std::string& name,
                  std::vector<MicrobatchValues>& microbatches, Of of) {
  if (chunks.size() > values.size()) {
    throw ArgumentError(std::to_string(chunks.size()) + " chunks for " + std::to_string(values.size()) + " " +
                        name + "s");
  }
  for (std::size_t at = 0; at < values.size(); ++at) {
    std::vector<at::Tensor> parts =
        split_value(values[at], at < chunks.size() ? chunks[at] : Chunk{},
                    static_cast<Microbatch>(microbatches.size()), name + " " + std::to_string(at));
    for (std::size_t part = 0; part < parts.size(); ++part) {
      of(microbatches[part]).push_back(std::move(parts[part]));
    }
  }
}

}  // namespace

Merge merge_along(std::int64_t dim) {
  return [dim](const std::vector<at::Tensor>& parts) { return at::cat(parts, dim); };
}

Merge merge_sum() {
  return [](const std::vector<at::Tensor>& parts) { return at::stack(parts).sum(0); };
}

Merge merge_mean() {
  return [](const std::vector<at::Tensor>& parts) { return at::stack(parts).mean(0); };
}

std::vector<MicrobatchValues> split_batch(const Batch& batch, const SplitSpec& spec,
                                          Microbatch microbatches) {
  if (!batch.microbatches.empty()) {
    if (!batch.inputs.empty() || !batch.targets.empty() || !batch.stage_inputs.empty()) {
      throw ArgumentError("a batch is either whole or in microbatches, not both");
    }
    if (batch.microbatches.size() != static_cast<std::size_t>(microbatches)) {
      throw ArgumentError("the batch comes in " + std::to_string(batch.microbatches.size()) +
                          " microbatches, the schedule has " + std::to_string(microbatches));
    }
    return batch.microbatches;
  }
  std::vector<MicrobatchValues> split(static_cast<std::size_t>(microbatches));
  split_values(batch.inputs, spec.inputs, "input", split,
               [](MicrobatchValues& m) -> Values& { return m.inputs; });
  split_values(batch.targets, spec.targets, "target", split,
               [](MicrobatchValues& m) -> Values& { return m.targets; });
  for (const auto& [stage, values] : batch.stage_inputs) {
    const auto chunks = spec.stage_inputs.find(stage);
    split_values(values, chunks == spec.stage_inputs.end() ? std::vector<Chunk>() : chunks->second,
                 "stage " + std::to_string(stage) + " input", split,
                 [stage](MicrobatchValues& m) -> Values& { return m.stage_inputs[stage]; });
  }
  return split;
}

Values merge_outputs(const std::vector<Values>& by_microbatch, const std::vector<Merge>& merges) {
  std::size_t count = 0;
  for (const Values& outputs : by_microbatch) count = std::max(count, outputs.size());
  Values merged(count);
  for (std::size_t slot = 0; slot < count; ++slot) {
    std::vector<at::Tensor> parts;
    for (const Values& outputs : by_microbatch) {
      if (slot < outputs.size() && outputs[slot].defined()) parts.push_back(outputs[slot]);
    }
    if (parts.empty()) continue;
    if (slot < merges.size() && merges[slot]) {
      merged[slot] = merges[slot](parts);
    } else {
      merged[slot] = parts.front().dim() == 0 ? at::stack(parts) : at::cat(parts);
    }
  }
  return merged;
}

}  // namespace pipewright
