#pragma once

#include <cstddef>
#include <string>

namespace pipewright {

/// The same text in all processes that one kernel runs: they share its devices, and their steady clocks can
/// be compared. Always of the same length.
std::string running_system();
inline constexpr std::size_t kSystemText = 36;

}  // namespace pipewright
