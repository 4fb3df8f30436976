#pragma once

#include <array>
#include <string>
#include <vector>

#include "pipewright/schedule/validate.h"
#include "schedule/validate/action_index.h"

namespace pipewright {

enum class Scope {
  All,
  /// What surrounds the compute actions, whose own order is known to be valid.
  AroundCompute,
};
std::vector<Diagnostic> validate(const Schedule& schedule, Format format, Scope scope);

/// What one sweep over the whole schedule tells. Rules that it clears need not look again.
struct Survey {
  /// How many actions of each kind there are.
  std::array<std::size_t, 12> kinds{};
  /// Whether any is fused with the next, and whether any skips stages.
  bool has_fused = false;
  bool has_skipping = false;
  /// Whether every action is within the schedule's counts and on its stage's rank.
  bool in_place = true;
};

/// What the rules read.
struct Subject {
  const Schedule& schedule;
  Format format;
  Scope scope;
  Survey survey;
  /// Null for the rules that must pass before it can be built, and for those
  /// that do not need it.
  const ActionIndex* index = nullptr;

  std::size_t count(Kind kind) const { return survey.kinds[static_cast<std::size_t>(kind)]; }
  bool has_backward() const { return count(Kind::B) + count(Kind::I) + count(Kind::W) > 0; }
  Rank rank_of(Stage stage) const { return schedule.placement[static_cast<std::size_t>(stage)]; }
  Action action(Rank rank, std::size_t position) const {
    return schedule.ranks[static_cast<std::size_t>(rank)][position];
  }
};

/// Where a rule puts what it finds, up to kDiagnosticsPerRule.
class Findings {
 public:
  Findings(std::string_view rule, const Schedule& schedule, std::vector<Diagnostic>& out)
      : rule_(rule), schedule_(schedule), out_(out) {}

  bool empty() const { return found_ == 0; }
  /// True once there is no room left: a rule may stop looking.
  bool full() const { return found_ == kDiagnosticsPerRule; }
  /// About the action at `position` of the rank's list.
  void add(Rank rank, std::size_t position, std::string message);
  /// About an action that is not there, or about the schedule as a whole.
  void add_absence(Rank rank, std::string action, std::string message);

 private:
  std::string_view rule_;
  const Schedule& schedule_;
  std::vector<Diagnostic>& out_;
  std::size_t found_ = 0;
};

// One file each; what each asks for is said there.
void check_format(const Subject& subject, Findings& findings);
void check_placement(const Subject& subject, Findings& findings);
void check_skips(const Subject& subject, Findings& findings);
void check_counts(const Subject& subject, Findings& findings);
void check_split(const Subject& subject, Findings& findings);
void check_order(const Subject& subject, Findings& findings);
void check_dependencies(const Subject& subject, Findings& findings);
void check_messages(const Subject& subject, Findings& findings);
void check_reduce_grad(const Subject& subject, Findings& findings);
void check_unshard(const Subject& subject, Findings& findings);

}  // namespace pipewright
