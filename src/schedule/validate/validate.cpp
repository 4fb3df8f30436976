#include "pipewright/schedule/validate.h"

#include <memory>
#include <utility>

#include "schedule/validate/rules.h"

namespace pipewright {
namespace {

struct Rule {
  std::string_view name;
  void (*check)(const Subject&, Findings&);
  /// Rules of a later tier rely on all earlier ones: they run only if nothing was found yet.
  int tier;
};

constexpr std::array<Rule, 9> kRules = {{
    {"format", check_format, 0},
    {"placement", check_placement, 0},
    {"counts", check_counts, 1},
    {"split", check_split, 2},
    {"order", check_order, 2},
    {"dependencies", check_dependencies, 3},
    {"messages", check_messages, 3},
    {"reduce_grad", check_reduce_grad, 3},
    {"unshard", check_unshard, 3},
}};

std::array<std::size_t, 12> count_kinds(const Schedule& schedule) {
  std::array<std::size_t, 12> counts{};
  for (const auto& actions : schedule.ranks) {
    for (const Action action : actions) ++counts[static_cast<std::size_t>(action.kind)];
  }
  return counts;
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
  out_.push_back({.rule = rule_,
                  .rank = rank,
                  .step = -1,
                  .action = std::move(action),
                  .message = std::move(message)});
}

std::string to_text(const Diagnostic& diagnostic) {
  std::string text = "[" + std::string(diagnostic.rule) + "]";
  if (diagnostic.rank >= 0) text += " rank " + std::to_string(diagnostic.rank);
  if (diagnostic.step >= 0) text += " step " + std::to_string(diagnostic.step);
  if (diagnostic.rank >= 0) text += ":";
  return text + " " + diagnostic.message;
}

std::vector<Diagnostic> validate(const Schedule& schedule, Format format) {
  std::vector<Diagnostic> found;
  Subject subject{.schedule = schedule, .format = format, .kind_counts = count_kinds(schedule)};
  std::unique_ptr<ActionIndex> index;
  int tier = 0;
  for (const Rule& rule : kRules) {
    if (rule.tier > tier) {
      if (!found.empty()) break;
      tier = rule.tier;
    }
    // The count of forwards has shown by now that the index is no larger than the schedule.
    if (tier == 2 && index == nullptr) {
      index = std::make_unique<ActionIndex>(schedule);
      subject.index = index.get();
    }
    Findings findings(rule.name, schedule, found);
    rule.check(subject, findings);
  }
  return found;
}

std::vector<std::string_view> rule_names() {
  std::vector<std::string_view> names;
  for (const Rule& rule : kRules) names.push_back(rule.name);
  return names;
}

}  // namespace pipewright
