#pragma once

#include <cstdint>

namespace pipewright {

/// Position of a process (or thread) in the pipeline, from 0.
using Rank = std::int32_t;
/// Index of a piece of the model, from 0 (first) to stages − 1 (last).
using Stage = std::int32_t;
/// Index of a slice of the batch, from 0.
using Microbatch = std::int32_t;

/// Hard limits: what an Action can hold, and what a parser accepts before it
/// refuses instead of overflowing or exhausting memory.
inline constexpr std::int64_t kMaxRanks = 1 << 16;
inline constexpr std::int64_t kMaxStages = 1 << 16;
inline constexpr std::int64_t kMaxMicrobatches = 1 << 24;
/// How far apart two stages may be that exchange messages.
inline constexpr Stage kMaxSkipDistance = (1 << 8) - 1;
/// Cells of one schedule over all ranks (eight bytes each).
inline constexpr std::int64_t kMaxCells = std::int64_t{1} << 28;

}  // namespace pipewright
