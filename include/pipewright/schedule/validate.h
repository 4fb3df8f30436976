#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/schedule/schedule.h"

namespace pipewright {

/// One thing wrong with a schedule, and where. Rank and step are −1 where the
/// fault is an absence that belongs to no cell.
struct Diagnostic {
  std::string_view rule;
  Rank rank = -1;
  std::int64_t step = -1;
  std::string action;
  std::string message;
};

/// `[order] rank 2 step 17: 3B4 before 3F4`
std::string to_text(const Diagnostic& diagnostic);

/// What a schedule may and must contain.
enum class Format {
  ComputeOnly,  ///< F, B, I, W and bubbles.
  Annotated,    ///< On the way between the two: UNSHARD, RESHARD, REDUCE_GRAD, no messages yet.
  Lowered,      ///< Everything, no bubbles, every boundary between ranks crossed by messages.
};

/// Every rule of `format` that `schedule` breaks; empty if it is valid. A valid
/// compute-only schedule can be lowered; a valid lowered one computes the right
/// thing if it runs to its end, which `prove_deadlock_free` decides.
/// At most `kDiagnosticsPerRule` are returned for each rule. Never throws for
/// what the schedule contains.
std::vector<Diagnostic> validate(const Schedule& schedule, Format format);

inline constexpr std::size_t kDiagnosticsPerRule = 20;

/// The names of all rules, in the order in which they are checked.
std::vector<std::string_view> rule_names();

}  // namespace pipewright
