#pragma once

#include <algorithm>
#include <vector>

#include "pipewright/flight/record.h"

namespace pipewright {

constexpr Microseconds kSecond = 1'000'000;
/// When the hand-made records begin and when they were written.
constexpr Microseconds kBegin = 1'000 * kSecond;
constexpr Microseconds kNow = kBegin + 60 * kSecond;

/// A process in step 3 that has the ranks which `process_of` gives it, all with nothing done. Stage i is
/// on rank i.
inline ProcessRecord process_record(int process, const std::vector<std::vector<int>>& process_of) {
  ProcessRecord record;
  record.process = process;
  record.host = "node";
  record.written = kNow;
  record.process_of = process_of;
  record.microbatches = 8;
  record.step = 3;
  record.in_step = true;
  record.since = kBegin;
  for (std::size_t replica = 0; replica < process_of.size(); ++replica) {
    for (std::size_t rank = 0; rank < process_of[replica].size(); ++rank) {
      record.processes = std::max(record.processes, process_of[replica][rank] + 1);
      if (replica == 0) record.placement.push_back(static_cast<Rank>(rank));
      if (process_of[replica][rank] != process) continue;
      record.ranks.push_back(
          {.replica = static_cast<int>(replica), .rank = static_cast<Rank>(rank), .actions = {}});
    }
  }
  return record;
}

/// All processes of such a world.
inline std::vector<ProcessRecord> world_of(const std::vector<std::vector<int>>& process_of) {
  std::vector<ProcessRecord> records = {process_record(0, process_of)};
  for (int process = 1; process < records[0].processes; ++process) {
    records.push_back(process_record(process, process_of));
  }
  return records;
}

/// In step 3. Times are in seconds from the beginning; below 0: not yet.
inline RecordedAction recorded(Action action, Need need, int start, int ready, int end) {
  const auto time = [](int seconds) { return seconds < 0 ? 0 : kBegin + seconds * kSecond; };
  return {.action = action,
          .step = 3,
          .need = need,
          .start = time(start),
          .ready = time(ready),
          .end = time(end)};
}
inline RecordedAction done(Action action, int start, int end) {
  return recorded(action, Need::Nothing, start, -1, end);
}
inline RecordedAction running(Action action, int start) {
  return recorded(action, Need::Nothing, start, -1, -1);
}
inline RecordedAction waiting(Action action, int start, Need need = Need::Message) {
  return recorded(action, need, start, -1, -1);
}

}  // namespace pipewright
