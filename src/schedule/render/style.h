#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/schedule/render.h"

namespace pipewright {

struct Color {
  int red;
  int green;
  int blue;
};

/// The colour of a compute action: its kind gives the hue, the position of its
/// stage among its rank's stages the lightness (0 is the darkest).
Color color_of(Kind kind, int local_stage);
std::string to_hex(Color color);

/// What waits look like: grey those that came to an end, red those that last.
inline constexpr Color kWaited = {0x8d, 0x97, 0xa3};
inline constexpr Color kStillWaits = {0xc2, 0x26, 0x4b};

/// The time that a drawing covers: that of its compute actions and waits.
struct Extent {
  double start = 0;
  double length = 0;
};
Extent extent_of(const Drawing& drawing);

/// Each rank's waits in order of time.
std::vector<std::vector<const Wait*>> waits_by_rank(const Drawing& drawing);

/// Rank and position of each action that had not ended.
using Positions = std::set<std::pair<std::size_t, std::size_t>>;
Positions unfinished_of(const Drawing& drawing);

/// Which of its rank's stages each stage is, counted from 0.
std::vector<int> local_stages(const Placement& placement);

/// A number as people write it: 51.5, 8, 0.125.
std::string short_number(double value);
/// A rate in percent, with one decimal: 5.9 %.
std::string percent(double rate);

}  // namespace pipewright
