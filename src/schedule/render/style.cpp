#include "schedule/render/style.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace pipewright {

Color color_of(Kind kind, int local_stage) {
  const auto base = [kind]() -> Color {
    switch (kind) {
      case Kind::F: return {58, 110, 190};
      case Kind::B: return {214, 126, 34};
      case Kind::I: return {28, 140, 140};
      case Kind::W: return {84, 150, 62};
      default: return {120, 120, 120};
    }
  }();
  const double lift = std::min(local_stage, 3) * 0.22;
  const auto lighter = [lift](int channel) {
    return channel + static_cast<int>((255 - channel) * lift);
  };
  return {lighter(base.red), lighter(base.green), lighter(base.blue)};
}

std::string to_hex(Color color) {
  std::array<char, 8> text{};
  std::snprintf(text.data(), text.size(), "#%02x%02x%02x", static_cast<unsigned>(color.red),
                static_cast<unsigned>(color.green), static_cast<unsigned>(color.blue));
  return text.data();
}

std::vector<int> local_stages(const Placement& placement) {
  std::vector<int> result;
  std::vector<int> seen;
  for (const Rank rank : placement) {
    if (static_cast<std::size_t>(rank) >= seen.size()) seen.resize(static_cast<std::size_t>(rank) + 1);
    result.push_back(seen[static_cast<std::size_t>(rank)]++);
  }
  return result;
}

std::string short_number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.6g", value);
  return text.data();
}

}  // namespace pipewright
