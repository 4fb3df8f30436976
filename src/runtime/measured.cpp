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
  std::vector<ByKind> held(durations.size());
  for (const Timeline& step : steps) {
    for (const auto& rank : step.ranks) {
      for (const TimedAction& timed : rank) {
        if (!is_compute(timed.action.kind)) continue;
        const auto kind = static_cast<std::size_t>(timed.action.kind);
        durations.at(timed.action.stage)[kind].push_back(timed.end - timed.start);
        if (timed.held) held.at(timed.action.stage)[kind].push_back(*timed.held);
      }
    }
  }
  const auto median_of = [](ByKind& stage, Kind kind) -> std::optional<double> {
    std::vector<double>& values = stage[static_cast<std::size_t>(kind)];
    return values.empty() ? std::nullopt : std::optional(median(values));
  };
  for (std::size_t stage = 0; stage < durations.size(); ++stage) {
    const auto time_of = [&](Kind kind) { return median_of(durations[stage], kind); };
    const std::optional<double> b = time_of(Kind::B);
    costs.stages.push_back({.f = time_of(Kind::F).value_or(0),
                            .i = time_of(Kind::I).value_or(b.value_or(0) / 2),
                            .w = time_of(Kind::W).value_or(b.value_or(0) / 2),
                            .b = b,
                            .activation = median_of(held[stage], Kind::F).value_or(0),
                            .held_for_w = median_of(held[stage], Kind::I)});
  }
  return costs;
}

}  // namespace pipewright
