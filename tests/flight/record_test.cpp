#include "pipewright/flight/record.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "pipewright/base/error.h"

namespace pipewright {
namespace {

using nlohmann::json;

ProcessRecord sample() {
  ProcessRecord record;
  record.process = 1;
  record.processes = 2;
  record.pid = 4711;
  record.host = "node \"1\"";
  record.written = 1'700'000'000'000'000;
  record.because = "SIGUSR1\nsecond line";
  record.placement = {0, 1};
  record.microbatches = 4;
  record.process_of = {{0, 1}, {1, 0}};
  record.step = 12;
  record.in_step = true;
  record.since = 1'699'999'999'000'000;
  record.wait = ProcessWait{.what = "sum of the gradients of stage 1", .among = {0, 1}, .since = 17};
  record.ranks = {
      {.replica = 0,
       .rank = 1,
       .actions = {{.action = make_action(1, Kind::Unshard), .step = 12, .start = 1, .end = 2},
                   {.action = make_action(1, Kind::F, 3),
                    .step = 12,
                    .need = Need::Message,
                    .start = 3,
                    .ready = 4,
                    .end = 5},
                   {.action = make_action(1, Kind::B, 3), .step = 12, .need = Need::Parameters, .start = 6}}},
      {.replica = 1,
       .rank = 0,
       .actions = {{.action = make_action(0, Kind::SendF, 0), .step = 12, .start = 1, .end = 2}}}};
  return record;
}

json document() { return json::parse(to_json(sample())); }

/// What the parser says of a document, empty where it takes it.
std::string complaint(const std::string& text) {
  try {
    parse_record(text);
  } catch (const ParseError& error) {
    return error.what();
  }
  return {};
}

/// The same of the sample with another value in one place.
std::string complaint(const char* place, const json& value) {
  json changed = document();
  changed[json::json_pointer(place)] = value;
  return complaint(changed.dump());
}

TEST(Record, ReadsWhatItHasWritten) {
  const ProcessRecord record = parse_record(to_json(sample()));
  EXPECT_EQ(to_json(record), to_json(sample()));
  EXPECT_EQ(record.host, "node \"1\"");
  EXPECT_EQ(record.because, "SIGUSR1\nsecond line");
  EXPECT_EQ(record.process_of, (std::vector<std::vector<int>>{{0, 1}, {1, 0}}));
  ASSERT_TRUE(record.wait);
  EXPECT_EQ(record.wait->among, (std::vector<int>{0, 1}));
  ASSERT_EQ(record.ranks.size(), 2U);
  EXPECT_EQ(record.ranks[1].replica, 1);
  ASSERT_EQ(record.ranks[0].actions.size(), 3U);
  const RecordedAction& waiting = record.ranks[0].actions[2];
  EXPECT_EQ(waiting.action, make_action(1, Kind::B, 3));
  EXPECT_EQ(waiting.need, Need::Parameters);
  EXPECT_TRUE(waiting.waits());
  EXPECT_FALSE(record.ranks[0].actions[1].waits());
}

TEST(Record, SaysWhichStageAMessageOverASkipComesFrom) {
  ProcessRecord record = sample();
  record.placement = {0, 1, 0};
  record.ranks[0].actions = {
      {.action = make_message(0, Kind::SendF, 1, 2), .step = 12, .start = 1, .end = 2},
      {.action = make_action(2, Kind::F, 1), .step = 12, .need = Need::Message, .from = 0, .start = 3}};
  const ProcessRecord again = parse_record(to_json(record));
  EXPECT_EQ(to_json(again), to_json(record));
  EXPECT_EQ(again.ranks[0].actions[0].action, make_message(0, Kind::SendF, 1, 2));
  EXPECT_EQ(again.ranks[0].actions[1].source(), 0);
  EXPECT_EQ(sample().ranks[0].actions[1].source(), 0);
  EXPECT_EQ(sample().ranks[0].actions[2].source(), 2);

  EXPECT_EQ(complaint("/ranks/0/actions/1/2", "message:2"),
            "flight record: 'message:2' names no stage of its pipeline");
  EXPECT_NE(complaint("/ranks/0/actions/1/2", "message:"), "");
  EXPECT_NE(complaint("/ranks/0/actions/1/2", "message:0x"), "");
  EXPECT_NE(complaint("/ranks/0/actions/1/0", "0SEND_F1:5"), "");
}

TEST(Record, MayBeOfAProcessWithoutAPipeline) {
  ProcessRecord record;
  record.host = "node";
  EXPECT_EQ(to_json(parse_record(to_json(record))), to_json(record));
}

TEST(Record, IsWrittenWhateverBytesATextHas) {
  ProcessRecord record = sample();
  record.because = "\xff\xfe broken";
  EXPECT_EQ(parse_record(to_json(record)).because, "\xef\xbf\xbd\xef\xbf\xbd broken");
}

TEST(Record, MayHaveBubbles) {
  ProcessRecord record = sample();
  record.ranks[0].actions[0].action = {};
  EXPECT_EQ(parse_record(to_json(record)).ranks[0].actions[0].action, Action());
}

TEST(Record, NamesTheRanksOfAProcess) {
  ProcessRecord record = sample();
  EXPECT_EQ(ranks_text(record, 1), "rank 1 of replica 0, rank 0 of replica 1");
  record.process_of = {{0, 0, 1}};
  EXPECT_EQ(ranks_text(record, 0), "rank 0, 1");
  EXPECT_EQ(ranks_text(record, 1), "rank 2");
  EXPECT_EQ(ranks_text(record, 2), "");
}

TEST(Record, NeedsEveryField) {
  const json whole = document();
  for (const auto& [name, value] : whole.items()) {
    json changed = whole;
    changed.erase(name);
    EXPECT_EQ(complaint(changed.dump()), "flight record: " + name + " is missing");
  }
  for (const char* name : {"replica", "rank", "actions"}) {
    json changed = document();
    changed["ranks"][0].erase(name);
    EXPECT_EQ(complaint(changed.dump()), std::string("flight record: ") + name + " is missing");
  }
  for (const char* name : {"what", "among", "since"}) {
    json changed = document();
    changed["wait"].erase(name);
    EXPECT_EQ(complaint(changed.dump()), std::string("flight record: ") + name + " is missing");
  }
}

struct Broken {
  const char* place;
  json value;
  const char* told;
};

TEST(Record, RefusesEachBrokenField) {
  const std::vector<Broken> all = {
      {"/format", "pipewright flight record 2", "format must be"},
      {"/format", 1, "format must be text"},
      {"/process", 2, "process must be from 0 to 1"},
      {"/process", -1, "process must be from 0 to 1"},
      {"/process", 0.5, "process must be an integer"},
      {"/processes", 0, "processes must be from 1"},
      {"/processes", 65537, "to 65536"},
      {"/pid", "4711", "pid must be an integer"},
      {"/host", nullptr, "host must be text"},
      {"/written", -1, "written must be from 0"},
      {"/written", std::numeric_limits<std::uint64_t>::max(), "written must be from 0"},
      {"/written", 1e300, "written must be an integer"},
      {"/because", json::array(), "because must be text"},
      {"/placement", 7, "placement must be a list"},
      {"/placement", {0, 2}, "placement must be from 0 to 1"},
      {"/placement", std::vector<int>(65537), "too many stages"},
      {"/microbatches", 16777217, "microbatches must be from 0 to 16777216"},
      {"/process_of", json::object(), "process_of must be a list"},
      {"/process_of", {{0, 1}, {1}}, "all ranks of each replica"},
      {"/process_of", {json::array()}, "all ranks of each replica"},
      {"/process_of/0/0", 2, "process_of must be from 0 to 1"},
      {"/process_of/0", "01", "process_of must be a list"},
      {"/step", true, "step must be an integer"},
      {"/in_step", 1, "in_step must be true or false"},
      {"/since", -5, "since must be from 0"},
      {"/wait", "sum", "an object with what is missing"},
      {"/wait/what", 1, "what must be text"},
      {"/wait/among/1", 2, "among must be from 0 to 1"},
      {"/ranks", nullptr, "ranks must be a list"},
      {"/ranks/0", 0, "an object with replica is missing"},
      {"/ranks/0/replica", 2, "replica must be from 0 to 1"},
      {"/ranks/0/rank", 9'000'000'000, "rank must be from 0 to 1"},
      {"/ranks/0/rank", 0, "rank 0 of replica 0 is not on process 1"},
      {"/ranks/1", document()["ranks"][0], "rank 1 is there twice"},
      {"/ranks/0/actions", "1F3", "actions must be a list"},
      {"/ranks/0/actions/1", "1F3", "an action must be a list"},
      {"/ranks/0/actions/1", {"1F3", 12, "", 3, 4}, "an action must have 6 fields"},
      {"/ranks/0/actions/1/0", "1X3", "unknown kind"},
      {"/ranks/0/actions/1/0", "2F3", "'2F3' is no action"},
      {"/ranks/0/actions/1/0", "1F4", "'1F4' is no action"},
      {"/ranks/0/actions/1/0", "(1F1;1B0)OVERLAP_F_B", "is no action"},
      {"/ranks/0/actions/1/0", 3, "an action's name must be text"},
      {"/ranks/0/actions/1/1", "12", "an action's step must be an integer"},
      {"/ranks/0/actions/1/2", "luck", "'luck' is nothing that an action needs"},
      {"/ranks/0/actions/1/3", -1, "an action's start must be from 0"},
      {"/ranks/0/actions/1/4", nullptr, "when an action was ready must be an integer"},
      {"/ranks/0/actions/1/5", 1.5, "an action's end must be an integer"},
  };
  for (const auto& [place, value, told] : all) {
    const std::string message = complaint(place, value);
    EXPECT_NE(message.find(told), std::string::npos) << place << " " << value << ": " << message;
  }
}

TEST(Record, RefusesValuesOfEveryWrongType) {
  const std::vector<json> values = {
      nullptr, true, -1, 1e308, "text", json::array(), json::object(), json::array({json::array()})};
  const json places = document().flatten();
  for (const auto& [place, old] : places.items()) {
    for (const json& value : values) {
      if (value.type() == old.type() ||
          (value.is_number() && old.is_number_integer() && value.is_number_integer())) {
        continue;
      }
      EXPECT_NE(complaint(place.c_str(), value), "") << place << " " << value;
    }
  }
}

TEST(Record, RefusesWhatIsNoDocument) {
  for (const char* text : {"", "{", "null", "[]", "7", "\"text\"", "{} {}", "{\"format\": 1", "\xff\xfe"}) {
    EXPECT_NE(complaint(text), "") << text;
  }
  EXPECT_EQ(complaint("{"), "flight record: is not JSON");
}

TEST(Record, RefusesEveryTruncation) {
  const std::string text = to_json(sample());
  for (std::size_t size = 0; size + 2 < text.size(); ++size) {
    EXPECT_EQ(complaint(text.substr(0, size)), "flight record: is not JSON");
  }
}

TEST(Record, RefusesDeepNesting) {
  EXPECT_EQ(complaint(std::string(10'000'000, '[')), "flight record: is nested too deeply");
  std::string objects;
  for (int i = 0; i < 1'000'000; ++i) objects += "{\"a\":";
  EXPECT_EQ(complaint(objects), "flight record: is nested too deeply");
}

}  // namespace
}  // namespace pipewright
