#include "gpt/data.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

#include "gpt/sample_text.h"
#include "pipewright/base/error.h"
#include "pipewright/runtime/random.h"

namespace gpt {
namespace {

constexpr std::size_t kBytes = 256;

std::size_t index_of(char c) { return static_cast<unsigned char>(c); }

/// The rank of each character by how often it occurs, the number of its byte among equals.
struct Frequencies {
  std::array<std::int64_t, kBytes> rank{};
  std::int64_t distinct = 0;
};

Frequencies count(std::string_view text) {
  std::array<std::size_t, kBytes> counts{};
  for (const char c : text) ++counts[index_of(c)];
  std::array<std::size_t, kBytes> order{};
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return counts[a] > counts[b]; });
  Frequencies result;
  for (std::size_t place = 0; place < kBytes; ++place) {
    result.rank[order[place]] = static_cast<std::int64_t>(place);
    if (counts[order[place]] > 0) ++result.distinct;
  }
  return result;
}

}  // namespace

std::string_view sample_text() { return pipewright::kSampleText; }

Characters::Characters(std::string_view text, std::int64_t vocab) : vocab_(vocab) {
  if (text.empty()) throw pipewright::ArgumentError("the text is empty");
  if (vocab < 0) throw pipewright::ArgumentError("the size of the vocabulary must be at least 1");
  const Frequencies frequencies = count(text);
  if (vocab_ == 0) vocab_ = frequencies.distinct;
  ids_ = at::empty({static_cast<std::int64_t>(text.size())}, at::kLong);
  std::ranges::transform(text, ids_.mutable_data_ptr<std::int64_t>(),
                         [&](char c) { return std::min(frequencies.rank[index_of(c)], vocab_ - 1); });
}

void Characters::check_context(std::int64_t context) const {
  if (context < size()) return;
  throw pipewright::ArgumentError("a context of " + std::to_string(context) +
                                  " characters and the one after it do not fit into a text of " +
                                  std::to_string(size()));
}

Characters::Sequences Characters::sequences(std::int64_t rows, std::int64_t context, std::uint64_t seed,
                                            std::uint64_t step) const {
  const at::Tensor starts =
      at::randint(size() - context, {rows, 1}, pipewright::seeded_generator({seed, step}), at::kLong);
  const at::Tensor windows = ids_.take(starts + at::arange(context + 1));
  return {.tokens = windows.narrow(1, 0, context).contiguous(),
          .targets = windows.narrow(1, 1, context).contiguous()};
}

}  // namespace gpt
