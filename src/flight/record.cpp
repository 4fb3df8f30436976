#include "pipewright/flight/record.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "pipewright/base/error.h"

namespace pipewright {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kFormat = "pipewright flight record 1";
constexpr std::array kNeeds = {"", "message", "parameters"};
constexpr std::size_t kFieldsOfAction = 6;
/// Deeper than any record goes; what nests without end is refused before it fills the memory.
constexpr int kDeepest = 8;

[[noreturn]] void fail(const std::string& what) { throw ParseError("flight record: " + what); }

const json& field(const json& object, const char* name) {
  if (!object.is_object()) fail(std::string("an object with ") + name + " is missing");
  const auto found = object.find(name);
  if (found == object.end()) fail(std::string(name) + " is missing");
  return *found;
}

std::int64_t integer(const json& value, const char* name, std::int64_t least, std::int64_t most) {
  if (!value.is_number_integer()) fail(std::string(name) + " must be an integer");
  const auto number = value.get<std::int64_t>();
  if (number < least || number > most || (value.is_number_unsigned() && number < 0)) {
    fail(std::string(name) + " must be from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return number;
}

Microseconds time(const json& value, const char* name) {
  return integer(value, name, 0, std::numeric_limits<std::int64_t>::max());
}

std::string text(const json& value, const char* name) {
  if (!value.is_string()) fail(std::string(name) + " must be text");
  return value.get<std::string>();
}

void check_list(const json& value, const char* name) {
  if (!value.is_array()) fail(std::string(name) + " must be a list");
}

/// A field that is a list.
const json& list(const json& object, const char* name) {
  const json& value = field(object, name);
  check_list(value, name);
  return value;
}

std::vector<int> integers(const json& value, const char* name, std::int64_t most) {
  std::vector<int> all;
  check_list(value, name);
  all.reserve(value.size());
  for (const json& each : value) all.push_back(static_cast<int>(integer(each, name, 0, most)));
  return all;
}

/// `message`, or over a skip `message:0` with the stage that it comes from.
std::string need_name(const RecordedAction& recorded) {
  const std::string name = kNeeds.at(static_cast<std::size_t>(recorded.need));
  const bool skips = recorded.need == Need::Message && recorded.from >= 0;
  return skips ? name + ":" + std::to_string(recorded.from) : name;
}

void parse_need(std::string need, const ProcessRecord& of, RecordedAction& recorded) {
  const std::string skip = std::string(kNeeds.at(static_cast<std::size_t>(Need::Message))) + ":";
  if (need.starts_with(skip)) {
    const char* end = need.data() + need.size();
    const auto [rest, status] = std::from_chars(need.data() + skip.size(), end, recorded.from);
    const auto stages = static_cast<Stage>(of.placement.size());
    if (status != std::errc() || rest != end || recorded.from < 0 || recorded.from >= stages) {
      fail("'" + need + "' names no stage of its pipeline");
    }
    need.resize(skip.size() - 1);
  }
  const auto* const found = std::find(kNeeds.begin(), kNeeds.end(), need);
  if (found == kNeeds.end()) fail("'" + need + "' is nothing that an action needs");
  recorded.need = static_cast<Need>(found - kNeeds.begin());
}

ordered_json action_json(const RecordedAction& recorded) {
  return {to_text(recorded.action), recorded.step,  need_name(recorded),
          recorded.start,           recorded.ready, recorded.end};
}

/// Bubbles are in plans as they are in schedules, and are nothing wrong.
bool is_action_of(const ProcessRecord& record, Action action) {
  const auto microbatches = static_cast<std::uint32_t>(record.microbatches);
  return action.stage < record.placement.size() &&
         (action.skipped() == 0 || peer_stage(action) < static_cast<Stage>(record.placement.size())) &&
         (!has_microbatch(action.kind) || action.microbatch < microbatches);
}

RecordedAction parse_action(const json& fields, const ProcessRecord& of) {
  check_list(fields, "an action");
  if (fields.size() != kFieldsOfAction) fail("an action must have 6 fields");
  RecordedAction recorded;
  std::vector<Action> cell;
  parse_cell(text(fields[0], "an action's name"), cell);
  if (cell.size() != 1 || !is_action_of(of, cell[0])) {
    fail("'" + fields[0].get<std::string>() + "' is no action of its pipeline");
  }
  recorded.action = cell[0];
  recorded.step = time(fields[1], "an action's step");
  parse_need(text(fields[2], "an action's need"), of, recorded);
  recorded.start = time(fields[3], "an action's start");
  recorded.ready = time(fields[4], "when an action was ready");
  recorded.end = time(fields[5], "an action's end");
  return recorded;
}

RankRecord parse_rank(const json& object, const ProcessRecord& of) {
  RankRecord rank;
  const auto replicas = static_cast<std::int64_t>(of.process_of.size());
  rank.replica = static_cast<int>(integer(field(object, "replica"), "replica", 0, replicas - 1));
  const std::vector<int>& process_of = of.process_of[static_cast<std::size_t>(rank.replica)];
  const auto ranks = static_cast<std::int64_t>(process_of.size());
  rank.rank = static_cast<Rank>(integer(field(object, "rank"), "rank", 0, ranks - 1));
  if (process_of[static_cast<std::size_t>(rank.rank)] != of.process) {
    fail("rank " + std::to_string(rank.rank) + " of replica " + std::to_string(rank.replica) +
         " is not on process " + std::to_string(of.process));
  }
  for (const json& each : list(object, "actions")) {
    rank.actions.push_back(parse_action(each, of));
  }
  return rank;
}

void parse_pipeline(const json& document, ProcessRecord& record) {
  const json& placement = list(document, "placement");
  if (placement.size() > static_cast<std::size_t>(kMaxStages)) fail("there are too many stages");
  const json& replicas = list(document, "process_of");
  std::size_t ranks = 0;
  for (const json& each : replicas) {
    record.process_of.push_back(integers(each, "process_of", record.processes - 1));
    ranks = record.process_of.front().size();
    if (record.process_of.back().size() != ranks || ranks == 0)
      fail("process_of must have all ranks of each replica");
  }
  record.placement = integers(placement, "placement", static_cast<std::int64_t>(ranks) - 1);
  record.microbatches =
      static_cast<Microbatch>(integer(field(document, "microbatches"), "microbatches", 0, kMaxMicrobatches));
}

}  // namespace

std::string ranks_text(const ProcessRecord& record, int process) {
  std::string text;
  for (std::size_t replica = 0; replica < record.process_of.size(); ++replica) {
    const std::vector<int>& processes = record.process_of[replica];
    std::string ranks;
    for (std::size_t rank = 0; rank < processes.size(); ++rank) {
      if (processes[rank] == process) ranks += (ranks.empty() ? "rank " : ", ") + std::to_string(rank);
    }
    if (ranks.empty()) continue;
    if (record.process_of.size() > 1) ranks += " of replica " + std::to_string(replica);
    text += (text.empty() ? "" : ", ") + ranks;
  }
  return text;
}

std::string to_json(const ProcessRecord& record) {
  ordered_json ranks = ordered_json::array();
  for (const RankRecord& rank : record.ranks) {
    ordered_json actions = ordered_json::array();
    for (const RecordedAction& each : rank.actions) actions.push_back(action_json(each));
    ranks.push_back({{"replica", rank.replica}, {"rank", rank.rank}, {"actions", std::move(actions)}});
  }
  ordered_json document = {{"format", kFormat},
                           {"process", record.process},
                           {"processes", record.processes},
                           {"pid", record.pid},
                           {"host", record.host},
                           {"written", record.written},
                           {"because", record.because},
                           {"placement", record.placement},
                           {"microbatches", record.microbatches},
                           {"process_of", record.process_of},
                           {"step", record.step},
                           {"in_step", record.in_step},
                           {"since", record.since},
                           {"wait", nullptr},
                           {"ranks", std::move(ranks)}};
  if (record.wait) {
    document["wait"] = {
        {"what", record.wait->what}, {"among", record.wait->among}, {"since", record.wait->since}};
  }
  // Text that is no UTF-8, of an error for example, must not keep it from being written.
  return document.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

ProcessRecord parse_record(std::string_view input) {
  const auto shallow = [](int depth, json::parse_event_t, const json&) {
    if (depth > kDeepest) fail("is nested too deeply");
    return true;
  };
  const json document = json::parse(input, shallow, /*allow_exceptions=*/false);
  if (document.is_discarded()) fail("is not JSON");
  if (text(field(document, "format"), "format") != kFormat)
    fail(std::string("format must be '") + kFormat + "'");
  ProcessRecord record;
  record.processes = static_cast<int>(integer(field(document, "processes"), "processes", 1, kMaxRanks));
  record.process = static_cast<int>(integer(field(document, "process"), "process", 0, record.processes - 1));
  record.pid = time(field(document, "pid"), "pid");
  record.host = text(field(document, "host"), "host");
  record.written = time(field(document, "written"), "written");
  record.because = text(field(document, "because"), "because");
  parse_pipeline(document, record);
  record.step = time(field(document, "step"), "step");
  const json& in_step = field(document, "in_step");
  if (!in_step.is_boolean()) fail("in_step must be true or false");
  record.in_step = in_step.get<bool>();
  record.since = time(field(document, "since"), "since");
  if (const json& wait = field(document, "wait"); !wait.is_null()) {
    record.wait = ProcessWait{.what = text(field(wait, "what"), "what"),
                              .among = integers(field(wait, "among"), "among", record.processes - 1),
                              .since = time(field(wait, "since"), "since")};
  }
  std::set<std::pair<int, Rank>> seen;
  for (const json& rank : list(document, "ranks")) {
    record.ranks.push_back(parse_rank(rank, record));
    if (!seen.emplace(record.ranks.back().replica, record.ranks.back().rank).second) {
      fail("rank " + std::to_string(record.ranks.back().rank) + " is there twice");
    }
  }
  return record;
}

}  // namespace pipewright
