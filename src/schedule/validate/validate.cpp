#include "pipewright/schedule/validate.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "schedule/validate/rules.h"

namespace pipewright {
namespace {

struct Rule {
  std::string_view name;
  void (*check)(const Subject&, Findings&);
  /// Rules of a later tier rely on all earlier ones: they run only if nothing was found yet.
  int tier;
  /// Whether the rule looks at nothing but the order of compute actions.
  bool compute_only;
};

constexpr std::array<Rule, 10> kRules = {{
    {"format", check_format, 0, false},
    {"placement", check_placement, 0, false},
    {"skips", check_skips, 1, false},
    {"counts", check_counts, 1, true},
    {"split", check_split, 2, true},
    {"order", check_order, 2, true},
    {"dependencies", check_dependencies, 3, true},
    {"messages", check_messages, 3, false},
    {"reduce_grad", check_reduce_grad, 3, false},
    {"unshard", check_unshard, 3, false},
}};

Survey survey(const Schedule& schedule) {
  const std::span<const Rank> placement = schedule.placement;
  const auto microbatches = static_cast<std::uint32_t>(schedule.microbatches);
  Survey result;
  // Neighbours are often of one kind: four counters for each keep increments
  // from waiting for each other.
  constexpr std::size_t kLanes = 4;
  std::array<std::array<std::size_t, kLanes>, 12> counts{};
  for (Rank rank = 0; rank < schedule.rank_count(); ++rank) {
    const std::span<const Action> actions = schedule.ranks[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const Action action = actions[i];
      ++counts[static_cast<std::size_t>(action.kind)][i % kLanes];
      if (action.link != 0) [[unlikely]]
        (action.fused_with_next() ? result.has_fused : result.has_skipping) = true;
      if (action.stage < placement.size() && action.microbatch < microbatches &&
          placement[action.stage] == rank) {
        continue;
      }
      if (action.kind != Kind::Bubble) result.in_place = false;
    }
  }
  for (std::size_t kind = 0; kind < counts.size(); ++kind) {
    for (const std::size_t count : counts[kind]) result.kinds[kind] += count;
  }
  return result;
}

}  // namespace

void Findings::add(Rank rank, std::size_t position, std::string message) {
  if (full()) return;
  ++found_;
  const auto& actions = schedule_.ranks[static_cast<std::size_t>(rank)];
  out_.push_back({.rule = rule_,
                  .rank = rank,
                  .step = static_cast<std::int64_t>(step_of(actions, position)),
                  .action = to_text(actions[position]),
                  .message = std::move(message)});
}

void Findings::add_absence(Rank rank, std::string action, std::string message) {
  if (full()) return;
  ++found_;
  out_.push_back(
      {.rule = rule_, .rank = rank, .step = -1, .action = std::move(action), .message = std::move(message)});
}

std::string to_text(const Diagnostic& diagnostic) {
  std::string text = "[" + std::string(diagnostic.rule) + "]";
  if (diagnostic.rank >= 0) text += " rank " + std::to_string(diagnostic.rank);
  if (diagnostic.step >= 0) text += " step " + std::to_string(diagnostic.step);
  if (diagnostic.rank >= 0) text += ":";
  return text + " " + diagnostic.message;
}

std::vector<Diagnostic> validate(const Schedule& schedule, Format format) {
  return validate(schedule, format, Scope::All);
}

std::vector<Diagnostic> validate(const Schedule& schedule, Format format, Scope scope) {
  std::vector<Diagnostic> found;
  Subject subject{.schedule = schedule, .format = format, .scope = scope, .survey = survey(schedule)};
  std::unique_ptr<ActionIndex> index;
  int tier = 0;
  for (const Rule& rule : kRules) {
    if (rule.compute_only && scope == Scope::AroundCompute) continue;
    if (rule.tier > tier) {
      if (!found.empty()) break;
      tier = rule.tier;
    }
    // The counts of forwards and of messages over skips have shown by now that the index is no larger than
    // the schedule.
    const bool needs_index = scope == Scope::All || format == Format::Lowered;
    if (tier >= 2 && needs_index && index == nullptr) {
      index = std::make_unique<ActionIndex>(schedule);
      subject.index = index.get();
    }
    Findings findings(rule.name, schedule, found);
    rule.check(subject, findings);
  }
  return found;
}

std::vector<std::string_view> rule_names() {
  std::vector<std::string_view> names(kRules.size());
  std::ranges::transform(kRules, names.begin(), &Rule::name);
  return names;
}

}  // namespace pipewright
