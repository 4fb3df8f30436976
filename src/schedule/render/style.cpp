#include "schedule/render/style.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <utility>

namespace pipewright {

Color color_of(Kind kind, int local_stage) {
  // The page's own colours: told apart by colour-blind readers too.
  const auto base = [kind]() -> Color {
    switch (kind) {
      case Kind::F: return {0x27, 0x64, 0xb8};
      case Kind::B: return {0xee, 0x97, 0x22};
      case Kind::I: return {0x40, 0xcb, 0xc2};
      case Kind::W: return {0x4a, 0x75, 0x35};
      default: return {120, 120, 120};
    }
  }();
  const double lift = std::min(local_stage, 3) * 0.22;
  const auto lighter = [lift](int channel) { return channel + static_cast<int>((255 - channel) * lift); };
  return {lighter(base.red), lighter(base.green), lighter(base.blue)};
}

std::string to_hex(Color color) {
  std::array<char, 8> text{};
  std::snprintf(text.data(), text.size(), "#%02x%02x%02x", static_cast<unsigned>(color.red),
                static_cast<unsigned>(color.green), static_cast<unsigned>(color.blue));
  return text.data();
}

Extent extent_of(const Drawing& drawing) {
  double first = std::numeric_limits<double>::infinity();
  double last = 0;
  const auto cover = [&](double start, double end) {
    first = std::min(first, start);
    last = std::max(last, end);
  };
  for (const auto& rank : drawing.timeline.ranks) {
    for (const TimedAction& timed : rank) {
      if (is_compute(timed.action.kind)) cover(timed.start, timed.end);
    }
  }
  for (const Wait& wait : drawing.waits) cover(wait.start, wait.end);
  return last > first ? Extent{.start = first, .length = last - first} : Extent{};
}

std::vector<std::vector<const Wait*>> waits_by_rank(const Drawing& drawing) {
  std::vector<std::vector<const Wait*>> ranks(drawing.timeline.ranks.size());
  for (const Wait& wait : drawing.waits) ranks[static_cast<std::size_t>(wait.rank)].push_back(&wait);
  for (auto& waits : ranks) {
    std::ranges::sort(waits, {}, [](const Wait* wait) { return std::pair(wait->start, wait); });
  }
  return ranks;
}

Positions unfinished_of(const Drawing& drawing) {
  Positions positions;
  for (const auto& [rank, position] : drawing.unfinished) {
    positions.emplace(static_cast<std::size_t>(rank), position);
  }
  return positions;
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

std::string percent(double rate) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f %%", 100 * rate);
  return text.data();
}

}  // namespace pipewright
