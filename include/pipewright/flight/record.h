#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/schedule/schedule.h"

namespace pipewright {

/// Microseconds of the machine's clock, since 1970. 0: not yet.
using Microseconds = std::int64_t;

/// What an action needs from elsewhere before it can go on.
enum class Need : std::uint8_t {
  Nothing,
  Message,     ///< From a stage on another rank.
  Parameters,  ///< Those of its sharded stage, from the other replicas.
};

/// An action of a rank, with when it began, had what it needed, and ended.
struct RecordedAction {
  Action action;
  std::int64_t step = 0;
  Need need = Need::Nothing;
  /// The stage that a message comes from over a skip; −1: it is the neighbour's.
  Stage from = -1;
  Microseconds start = 0;
  Microseconds ready = 0;
  Microseconds end = 0;

  /// The stage that its message comes from.
  Stage source() const {
    if (from >= 0) return from;
    return action.kind == Kind::F ? Stage{action.stage} - 1 : Stage{action.stage} + 1;
  }
  bool waits() const { return end == 0 && ready == 0 && need != Need::Nothing; }
};

struct RankRecord {
  int replica = 0;
  Rank rank = 0;
  /// The last ones, oldest first.
  std::vector<RecordedAction> actions;
};

/// What a process as a whole waits for, outside the actions of its ranks.
struct ProcessWait {
  /// "sum of the gradients of stage 2"
  std::string what;
  /// Who takes part, this process among them.
  std::vector<int> among;
  Microseconds since = 0;
};

/// What a process did last, and what it does now.
struct ProcessRecord {
  int process = 0;
  int processes = 1;
  std::int64_t pid = 0;
  std::string host;
  Microseconds written = 0;
  /// Why it was written: a failure's message, or a signal.
  std::string because;

  Placement placement;
  Microbatch microbatches = 0;
  /// Which process has a rank: by replica and rank.
  std::vector<std::vector<int>> process_of;

  /// The step that it is in, or made last; counted from 1.
  std::int64_t step = 0;
  bool in_step = false;
  /// When that step began or, outside of one, ended.
  Microseconds since = 0;
  std::optional<ProcessWait> wait;
  std::vector<RankRecord> ranks;
};

/// Which ranks of its world a process has: "rank 2, 3", among several replicas "rank 2 of replica 1".
std::string ranks_text(const ProcessRecord& record, int process);

std::string to_json(const ProcessRecord& record);

/// Throws ParseError, whose message says what is wrong where.
ProcessRecord parse_record(std::string_view text);

}  // namespace pipewright
