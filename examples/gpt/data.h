#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace gpt {

/// The text that comes with the example.
std::string_view sample_text();

/// A text as numbers, one for each character; the most frequent character is 0.
class Characters {
 public:
  /// `vocab` 0: as many ids as there are different characters. Fewer: the rarest
  /// share the last id. More: the last ids go unused. Throws pipewright::ArgumentError
  /// for an empty text or a negative `vocab`.
  explicit Characters(std::string_view text, std::int64_t vocab = 0);

  std::int64_t vocab() const { return vocab_; }
  std::int64_t size() const { return ids_.size(0); }

  /// Throws pipewright::ArgumentError if the text is too short for a sequence and the character after it.
  void check_context(std::int64_t context) const;

  struct Sequences {
    at::Tensor tokens;   ///< [rows, context]
    at::Tensor targets;  ///< The same, one character further on.
  };
  /// Sequences from places that depend on seed, step and sizes alone. REQUIRES: check_context.
  Sequences sequences(std::int64_t rows, std::int64_t context, std::uint64_t seed, std::uint64_t step) const;

 private:
  std::int64_t vocab_;
  at::Tensor ids_;
};

}  // namespace gpt
