#pragma once

#include <string>

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

/// Which of its rank's stages each stage is, counted from 0.
std::vector<int> local_stages(const Placement& placement);

/// A number as people write it: 51.5, 8, 0.125.
std::string short_number(double value);
/// A rate in percent, with one decimal: 5.9 %.
std::string percent(double rate);

}  // namespace pipewright
