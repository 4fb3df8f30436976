#pragma once

#include <map>
#include <string>
#include <vector>

#include "pipewright/flight/record.h"

namespace pipewright {

/// Who does not go on although nothing that is known holds him up.
struct Culprit {
  int process = 0;
  /// −1 where it is the process as a whole.
  int replica = -1;
  Rank rank = -1;
  std::string text;
};

/// Who waits for whom, in words.
struct Diagnosis {
  /// Of every rank and process that waits: for what, how long, from whom.
  std::vector<std::string> waits;
  /// Where the chains of waits end, the likeliest first. Empty where nobody waits.
  std::vector<Culprit> culprits;
};

/// REQUIRES: the records are of one world, each of another process.
/// `absent`: processes without a record, and why there is none, as the end of a sentence:
/// "is gone: its connections have closed". Those that are not in it have, at least, left no record.
Diagnosis diagnose(const std::vector<ProcessRecord>& records, const std::map<int, std::string>& absent = {});

}  // namespace pipewright
