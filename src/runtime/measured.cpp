#include "pipewright/runtime/measured.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

namespace pipewright {
namespace {

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

Costs measured_costs(std::span<const Timeline> steps) {
  Costs costs;
  if (steps.empty()) return costs;
  using ByKind = std::array<std::vector<double>, static_cast<std::size_t>(Kind::W) + 1>;
  std::vector<ByKind> durations(steps.front().placement.size());
  for (const Timeline& step : steps) {
    for (const auto& rank : step.ranks) {
      for (const TimedAction& timed : rank) {
        if (!is_compute(timed.action.kind)) continue;
        durations.at(timed.action.stage)[static_cast<std::size_t>(timed.action.kind)].push_back(timed.end -
                                                                                                timed.start);
      }
    }
  }
  for (ByKind& stage : durations) {
    const auto of = [&](Kind kind) -> std::optional<double> {
      std::vector<double>& values = stage[static_cast<std::size_t>(kind)];
      return values.empty() ? std::nullopt : std::optional(median(values));
    };
    const std::optional<double> b = of(Kind::B);
    costs.stages.push_back({.f = of(Kind::F).value_or(0),
                            .i = of(Kind::I).value_or(b.value_or(0) / 2),
                            .w = of(Kind::W).value_or(b.value_or(0) / 2),
                            .b = b});
  }
  return costs;
}

}  // namespace pipewright
