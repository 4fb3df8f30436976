#include <algorithm>
#include <array>
#include <cctype>
#include <functional>
#include <numeric>
#include <utility>

#include "pipewright/base/error.h"
#include "pipewright/schedule/generate.h"
#include "schedule/generate/generators.h"

namespace pipewright {
namespace {

constexpr int kAny = 1 << 16;

constexpr std::array<ScheduleInfo, 12> kInfos = {{
    {"GPipe", 1, 1, 1, "loop", "all forwards, then all backwards"},
    {"1F1B", 1, 1, 1, "loop", "one forward, one backward; GPipe's bubble at p activations"},
    {"Interleaved1F1B", 2, 1, kAny, "loop", "1F1B over several stages a rank: bubble divided by v"},
    {"LoopedBFS", 2, 1, kAny, "loop", "GPipe over several stages a rank, breadth first"},
    {"InterleavedZeroBubble", 2, 1, kAny, "loop", "interleaved 1F1B, W delayed to fill the drain"},
    {"ZBVZeroBubble", 2, 2, 2, "v", "no bubble within a rank's span at F = I = W, p activations"},
    {"DualPipeV", 2, 2, 2, "v", "a forward and a backward overlapped to hide communication"},
    {"ZB-H1", 1, 1, 1, "loop", "1F1B with split backward: a third of its bubble, same memory"},
    {"ZB-H2", 1, 1, 1, "loop", "no bubble within a rank's span, about twice 1F1B's memory"},
    {"V-Half", 2, 2, 2, "v", "half of 1F1B's memory"},
    {"V-Min", 2, 2, 2, "v", "a third of 1F1B's memory"},
    {"ForwardOnly", 1, 1, kAny, "any", "inference: forwards alone, on any placement"},
}};

/// In the order of `kInfos`; ForwardOnly, which takes a placement, comes last and apart.
constexpr std::array<Schedule (*)(const Sizes&), 11> kGenerators = {
    gpipe, one_f_one_b, interleaved_1f1b, looped_bfs, interleaved_zero_bubble, zbv_zero_bubble, dual_pipe_v,
    zb_h1, zb_h2,       v_half,           v_min};

/// Lower case, without the dashes and underscores that people leave out.
std::string folded(std::string_view name) {
  std::string result;
  for (const char c : name) {
    if (c != '-' && c != '_') result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return result;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0U);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

/// The known names that could have been meant, nearest first; all of them if none is near.
std::string near_names(std::string_view name) {
  const std::string wanted = folded(name.substr(0, 64));
  std::vector<std::pair<std::size_t, std::string_view>> near;
  for (const ScheduleInfo& info : kInfos) {
    const std::string known = folded(info.name);
    const bool part_of = wanted.size() >= 2 &&
                         (known.find(wanted) != std::string::npos || wanted.find(known) != std::string::npos);
    const std::size_t distance = part_of ? 0 : edit_distance(wanted, known);
    if (distance <= std::max<std::size_t>(2, known.size() / 3)) near.emplace_back(distance, info.name);
  }
  std::ranges::sort(near);
  if (near.empty()) {
    for (const ScheduleInfo& info : kInfos) near.emplace_back(0, info.name);
  }
  std::string list;
  for (const auto& [distance, known] : near) {
    if (!list.empty()) list += ", ";
    list += known;
  }
  return list;
}

void check_range(const char* what, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return;
  throw ArgumentError(std::string(what) + " must be from " + std::to_string(least) + " to " +
                      std::to_string(most) + ", not " + std::to_string(value));
}

void check_sizes(const ScheduleInfo& info, const Sizes& sizes) {
  check_range("the number of ranks", sizes.ranks, 1, kMaxRanks);
  check_range("the number of microbatches", sizes.microbatches, 1, kMaxMicrobatches);
  const int least = info.min_stages_per_rank;
  const int most = info.max_stages_per_rank;
  if (least == most && sizes.stages_per_rank != most) {
    throw ArgumentError(std::string(info.name) + " has exactly " + std::to_string(most) +
                        (most == 1 ? " stage" : " stages") + " a rank, not " +
                        std::to_string(sizes.stages_per_rank) +
                        "; Interleaved1F1B, LoopedBFS and InterleavedZeroBubble take any number");
  }
  check_range("the number of stages a rank", sizes.stages_per_rank, least, most);
  const std::int64_t stages = std::int64_t{sizes.ranks} * sizes.stages_per_rank;
  check_range("ranks × stages a rank", stages, 1, kMaxStages);
  // F, I and W, with room for the microbatches that a pattern adds to close.
  const std::int64_t microbatches = std::int64_t{sizes.microbatches} + 2 * std::int64_t{sizes.ranks};
  check_range("stages × microbatches × 3", 3 * stages * microbatches, 1, kMaxCells);
}

void check_placement(const Placement& placement, const Sizes& sizes, bool sizes_given) {
  if (sizes_given && placement.size() != static_cast<std::size_t>(sizes.stages())) {
    throw ArgumentError("the placement has " + std::to_string(placement.size()) + " stages, but " +
                        std::to_string(sizes.stages()) + " were asked for");
  }
  for (const Rank rank : placement) check_range("a rank of the placement", rank, 0, sizes.ranks - 1);
}

}  // namespace

std::span<const ScheduleInfo> known_schedules() { return kInfos; }

const ScheduleInfo& find_schedule(std::string_view name) {
  const std::string wanted = folded(name);
  const auto found =
      std::ranges::find_if(kInfos, [&](const ScheduleInfo& info) { return folded(info.name) == wanted; });
  if (found == kInfos.end()) {
    throw ArgumentError("unknown schedule '" + std::string(name) +
                        "'; did you mean one of: " + near_names(name) + "?");
  }
  return *found;
}

Schedule make_schedule(const ScheduleSpec& spec) {
  const ScheduleInfo& info = find_schedule(spec.name);
  const Sizes sizes{
      .ranks = spec.ranks,
      .microbatches = spec.microbatches,
      .stages_per_rank = spec.stages_per_rank == 0 ? info.default_stages_per_rank : spec.stages_per_rank};
  check_sizes(info, sizes);
  const auto row = static_cast<std::size_t>(&info - kInfos.data());
  if (row < kGenerators.size()) {
    if (!spec.placement.empty()) {
      throw ArgumentError(std::string(info.name) + " has its own placement; only ForwardOnly takes one");
    }
    return kGenerators[row](sizes);
  }
  Placement placement = spec.placement;
  if (placement.empty()) placement = loop_placement(sizes.ranks, sizes.stages_per_rank);
  check_placement(placement, sizes, spec.stages_per_rank != 0);
  return forward_only(sizes, std::move(placement));
}

}  // namespace pipewright
