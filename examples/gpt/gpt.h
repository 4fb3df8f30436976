#pragma once

#include <cstdint>

#include "pipewright/base/ids.h"
#include "pipewright/runtime/stage_model.h"
#include "pipewright/runtime/values.h"

namespace gpt {

/// A small decoder-only transformer over characters.
struct Config {
  std::int64_t layers = 8;
  std::int64_t width = 64;
  std::int64_t heads = 4;
  /// Characters of a sequence.
  std::int64_t context = 64;
  std::int64_t vocab = 64;
  std::uint64_t seed = 0;
  /// Of parameters and activations.
  at::ScalarType dtype = at::kFloat;
};

/// Layers, width, heads, context and vocabulary are at most this.
inline constexpr std::int64_t kMostOfAnything = 1 << 20;

/// Throws pipewright::ArgumentError for sizes that do not fit together.
void check(const Config& config);

/// What one stage holds: a contiguous range of the model, perhaps an empty one.
struct Share {
  bool embedding = false;
  std::int64_t first_block = 0;
  /// One past the last.
  std::int64_t end_block = 0;
  /// The final norm and the head.
  bool head = false;
};

/// The blocks spread evenly over the stages, the embedding on the first, the head on the last.
Share share_of(pipewright::Stage stage, pipewright::Stage stages, std::int64_t layers);

/// A stage's piece: from tokens (first stage) or activations to activations or logits (last stage).
/// Parameters have the names of the unsplit model, `blocks.3.attention.qkv.weight`, and
/// their first values depend on seed and name alone, so every split starts as the same model.
pipewright::StageModel make_stage(const Config& config, pipewright::Stage stage, pipewright::Stage stages);

/// Mean cross entropy, in float32, of the logits against the characters that follow; a pipewright::Loss.
at::Tensor next_character_loss(const pipewright::Values& outputs, const pipewright::Values& targets);

}  // namespace gpt
