#include "torch/bytes_text.h"

#include <array>
#include <iomanip>
#include <sstream>

namespace pipewright::cli {

std::string bytes_text(std::int64_t bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto number = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; number >= 1024 && unit + 1 < kUnits.size(); ++unit) number /= 1024;
  std::ostringstream out;
  out << std::fixed << std::setprecision(unit == 0 ? 0 : 1) << number << ' ' << kUnits[unit];
  return out.str();
}

}  // namespace pipewright::cli
