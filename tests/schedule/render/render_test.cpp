#include "pipewright/schedule/render.h"

#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>
#include <sstream>

#include "pipewright/schedule/csv.h"
#include "pipewright/schedule/lower.h"
#include "pipewright/schedule/simulate.h"

namespace pipewright {
namespace {

using nlohmann::json;

constexpr const char* k1F1B =
    "0F0,0F1,0B0,0B1\n"
    "1F0,1B0,1F1,1B1\n";

/// Two stages on one rank, with an OVERLAP_F_B.
constexpr const char* kOverlap = "0F0,1F0,0F1,(1F1;1B0)OVERLAP_F_B,0B0,1I1,0I1,1W1,0W1\n";

Drawing draw(const Schedule& schedule, OverlapCost overlap = OverlapCost::Sum) {
  Costs costs = uniform_costs(schedule.placement, {.comm = 0.25});
  costs.overlap = overlap;
  return {.name = "1F1B", .label = "two by two", .timeline = simulate(schedule, costs), .costs = costs};
}

Drawing draw(const char* csv) { return draw(parse_csv(csv)); }

Drawing draw_lowered(const char* csv) { return draw(lower(parse_csv(csv))); }

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> result;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) result.push_back(line);
  return result;
}

std::size_t count(std::string_view text, std::string_view part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

bool contains(std::string_view text, std::string_view part) { return count(text, part) > 0; }

// ---- grid

TEST(Grid, HasARowAStepAndAColumnARank) {
  EXPECT_EQ(render_grid(parse_csv("0F0,0F1,,0B0,,0B1\n"
                                  ",1F0,(1F1;1B0)OVERLAP_F_B,1B1\n")),
            "        Rank 0 Rank 1              \n"
            "Step 0: 0F0                        \n"
            "Step 1: 0F1    1F0                 \n"
            "Step 2:        (1F1;1B0)OVERLAP_F_B\n"
            "Step 3: 0B0    1B1                 \n"
            "Step 4:                            \n"
            "Step 5: 0B1                        \n");
}

TEST(Grid, NumbersStepsWithEqualDigits) {
  const auto rows = lines(render_grid(parse_csv("0F0,0F1,0F2,0F3,0F4,0F5,0F6,0F7,0F8,0F9,0F10\n")));
  ASSERT_EQ(rows.size(), 12U);
  EXPECT_EQ(rows[0], "         Rank 0 ");
  EXPECT_EQ(rows[1], "Step 00: 0F0    ");
  EXPECT_EQ(rows[11], "Step 10: 0F10   ");
}

TEST(Grid, ShowsTheCellsOfALoweredPlan) {
  EXPECT_EQ(render_grid(parse_csv("0UNSHARD,0F0\n\n")),
            "        Rank 0   Rank 1\n"
            "Step 0: 0UNSHARD       \n"
            "Step 1: 0F0            \n");
}

TEST(Grid, OfNoCellsIsItsHeader) { EXPECT_EQ(render_grid(parse_csv("\n")), "        Rank 0\n"); }

// ---- terminal

TEST(Terminal, DrawsALineARank) {
  const Schedule schedule = parse_csv(k1F1B);
  const Costs costs = uniform_costs(schedule.placement);
  const Drawing drawing = {
      .name = "1F1B", .label = "two by two", .timeline = simulate(schedule, costs), .costs = costs};
  EXPECT_EQ(render_terminal(drawing, {.color = false}),
            "1F1B: two by two\n"
            "rank 0 |F0-F1-      B0----   B1----\n"
            "rank 1 |   F0-B0----F1-B1----\n"
            "makespan 9, ideal 6, bubble 33.3 % (by stage span 33.3 %), peak activation 2\n");
}

TEST(Terminal, DrawsThePartsOfABlockOneBehindTheOther) {
  EXPECT_EQ(lines(render_terminal(draw(kOverlap), {.color = false}))[1],
            "rank 0 |F0-F0-F1-F1---B0--B0----I1-I1-W1-W1-");
}

TEST(Terminal, DrawsNoMessages) {
  const std::string text = render_terminal(draw_lowered(k1F1B), {.color = false});
  EXPECT_FALSE(contains(text, "SEND"));
  EXPECT_FALSE(contains(text, "SHARD"));
  EXPECT_EQ(text, render_terminal(draw(k1F1B), {.color = false}));
}

TEST(Terminal, ColorsEveryBoxAndResetsAfterIt) {
  const auto rows = lines(render_terminal(draw(k1F1B), {.color = true}));
  ASSERT_EQ(rows.size(), 4U);
  for (std::size_t row = 1; row <= 2; ++row) {
    EXPECT_EQ(count(rows[row], "\x1b[48;2;"), 4U);
    EXPECT_EQ(count(rows[row], "\x1b[0m"), 4U);
    EXPECT_TRUE(rows[row].ends_with("\x1b[0m"));
  }
  EXPECT_FALSE(contains(rows[0] + rows[3], "\x1b"));
}

TEST(Terminal, TellsForwardFromBackwardByColor) {
  const auto rows = lines(render_terminal(draw("0F0,0B0\n"), {.color = true}));
  const std::string_view row = rows[1];
  const auto first = row.find("\x1b[48;2;");
  const auto second = row.find("\x1b[48;2;", first + 1);
  ASSERT_NE(second, row.npos);
  EXPECT_NE(row.substr(first, row.find('m', first) - first),
            row.substr(second, row.find('m', second) - second));
}

TEST(Terminal, HasNoEscapesWithoutColor) {
  EXPECT_FALSE(contains(render_terminal(draw(k1F1B), {.color = false}), "\x1b"));
}

TEST(Terminal, FillsTheColumnsItIsGiven) {
  for (const int columns : {1, 5, 20, 33, 200}) {
    const auto rows = lines(render_terminal(draw(k1F1B), {.columns = columns, .color = false}));
    std::size_t widest = 0;
    for (std::size_t row = 1; row <= 2; ++row) {
      widest = std::max(widest, rows[row].size() - std::string("rank 0 |").size());
    }
    EXPECT_EQ(widest, static_cast<std::size_t>(columns));
  }
}

TEST(Terminal, AlignsTheNamesOfRanks) {
  std::string csv;
  for (int rank = 0; rank < 11; ++rank) csv += std::to_string(rank) + "F0\n";
  const auto rows = lines(render_terminal(draw(csv.c_str()), {.color = false}));
  EXPECT_TRUE(rows[1].starts_with("rank  0 |"));
  EXPECT_TRUE(rows[11].starts_with("rank 10 |"));
}

/// Two ranks of which one waited and then runs, and the other still waits.
Drawing hung() {
  Drawing drawing;
  drawing.name = "Step 3";
  drawing.label = "hung";
  drawing.timeline.placement = {0, 1};
  drawing.timeline.microbatches = 2;
  drawing.timeline.ranks = {{{.action = make_action(0, Kind::F, 0), .start = 0, .end = 3}},
                            {{.action = make_action(1, Kind::F, 0), .start = 5, .end = 12}}};
  drawing.costs = uniform_costs(drawing.timeline.placement);
  drawing.waits = {
      {.rank = 0,
       .action = make_action(0, Kind::B, 0),
       .start = 3,
       .end = 12,
       .text = "0B0 waits for <gradients>",
       .lasts = true},
      {.rank = 1, .action = make_action(1, Kind::F, 0), .start = 0, .end = 5, .text = "1F0 waited"}};
  drawing.unfinished = {{.rank = 1, .position = 0}};
  drawing.complete = false;
  return drawing;
}

TEST(Terminal, DrawsWaitsUnlikeComputing) {
  EXPECT_EQ(render_terminal(hung(), {.columns = 24, .color = false}),
            "Step 3: hung\n"
            "rank 0 |F0----?B0???????????????\n"
            "rank 1 |..........F0----------->\n"
            "... waited, ??? still waits, > still runs\n");
}

TEST(Terminal, ColorsWaitsByWhetherTheyLast) {
  const auto rows = lines(render_terminal(hung(), {.columns = 24, .color = true}));
  EXPECT_TRUE(contains(rows[1], "\x1b[38;2;194;38;75m?B0???????????????\x1b[0m"));
  EXPECT_TRUE(contains(rows[2], "\x1b[38;2;141;151;163m..........\x1b[0m"));
}

TEST(Terminal, FindsRoomForAWaitOfNoAction) {
  Drawing drawing = hung();
  drawing.waits[0].action = {};
  EXPECT_EQ(lines(render_terminal(drawing, {.columns = 12, .color = false}))[1], "rank 0 |F0-?????????");
}

TEST(Terminal, HasRoomForWaitsAlone) {
  Drawing drawing = hung();
  drawing.timeline.ranks[0].clear();
  drawing.timeline.ranks[1].clear();
  drawing.unfinished.clear();
  EXPECT_EQ(lines(render_terminal(drawing, {.columns = 12, .color = false}))[1], "rank 0 |   ?B0??????");
}

// ---- SVG

std::vector<std::string> titled_boxes(const std::string& svg) {
  std::vector<std::string> titles;
  for (const std::string& line : lines(svg)) {
    const auto open = line.find("<title>");
    if (open == line.npos) continue;
    EXPECT_TRUE(line.starts_with("<rect "));
    EXPECT_TRUE(line.ends_with("</title></rect>"));
    titles.push_back(line.substr(open + 7, line.find("</title>") - open - 7));
  }
  return titles;
}

TEST(Svg, HasATitledBoxForEachComputeAction) {
  const std::vector<std::string> boxes = {"0F0", "0F1", "0B0", "0B1", "1F0", "1B0", "1F1", "1B1"};
  EXPECT_EQ(titled_boxes(render_svg(draw(k1F1B))), boxes);
  EXPECT_EQ(titled_boxes(render_svg(draw_lowered(k1F1B))), boxes);
}

TEST(Svg, IsOneElement) {
  const std::string svg = render_svg(draw(k1F1B));
  EXPECT_TRUE(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" "));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_EQ(count(svg, "<svg"), 1U);
  EXPECT_EQ(count(svg, "<text"), count(svg, "</text>"));
}

TEST(Svg, DrawsThePartsOfABlockOneOverTheOther) {
  const std::string svg = render_svg(draw(kOverlap));
  EXPECT_EQ(titled_boxes(svg),
            (std::vector<std::string>{"0F0", "1F0", "0F1", "1F1", "1B0", "0B0", "1I1", "0I1", "1W1", "0W1"}));
  std::vector<std::string> halves;
  for (const std::string& line : lines(svg)) {
    if (contains(line, "<title>") && contains(line, "height=\"13\"")) halves.push_back(line);
  }
  ASSERT_EQ(halves.size(), 2U);
  EXPECT_TRUE(contains(halves[0], " y=\"46\" "));
  EXPECT_TRUE(contains(halves[1], " y=\"59\" "));
}

TEST(Svg, EscapesNames) {
  Drawing drawing = draw(k1F1B);
  drawing.name = "a<b>&\"c\"";
  drawing.label = "</svg><script>&amp;";
  const std::string svg = render_svg(drawing);
  EXPECT_TRUE(contains(svg, ">a&lt;b&gt;&amp;&quot;c&quot;</text>"));
  EXPECT_TRUE(contains(svg, ">&lt;/svg&gt;&lt;script&gt;&amp;amp;</text>"));
  EXPECT_FALSE(contains(svg, "<script"));
}

TEST(Svg, NamesTheKindsItUses) {
  const std::string svg = render_svg(draw(k1F1B));
  EXPECT_TRUE(contains(svg, ">forward</text>"));
  EXPECT_TRUE(contains(svg, ">backward</text>"));
  EXPECT_FALSE(contains(svg, ">weight gradient</text>"));
  EXPECT_TRUE(contains(render_svg(draw(kOverlap)), ">weight gradient</text>"));
}

TEST(Svg, HatchesWaitsWithWhatTheyAreFor) {
  const std::string svg = render_svg(hung());
  EXPECT_EQ(titled_boxes(svg),
            (std::vector<std::string>{"0B0 waits for &lt;gradients&gt;", "0F0", "1F0 waited",
                                      "1F0, still runs", "waited", "still waits"}));
  EXPECT_EQ(count(svg, "<pattern "), 2U);
  EXPECT_EQ(count(svg, "url(#waited)"), 2U);  // the wait and its entry in the legend
  EXPECT_EQ(count(svg, "url(#lasts)"), 2U);
  EXPECT_FALSE(contains(svg, "makespan"));
  const std::string plain = render_svg(draw(k1F1B));
  EXPECT_FALSE(contains(plain, "<pattern "));
  EXPECT_TRUE(contains(plain, "makespan"));
}

TEST(Svg, HoldsNoCharacterThatXmlForbids) {
  Drawing drawing = hung();
  drawing.waits[0].text = "a\x01\x1b b\n";
  EXPECT_TRUE(contains(render_svg(drawing), "<title>a?? b\n</title>"));
}

TEST(Svg, OfAPartKeepsToAWidth) {
  Drawing drawing = hung();
  drawing.timeline.ranks[0][0].end = 0.001;
  const std::string svg = render_svg(drawing);
  EXPECT_TRUE(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1480\"")) << lines(svg)[0];
}

// ---- HTML

/// What the page carries for its script.
std::string embedded(const std::string& page) {
  const std::string open = R"(<script type="application/json" id="data">)";
  EXPECT_EQ(count(page, open), 1U);
  const auto begin = page.find(open) + open.size();
  return page.substr(begin, page.find("</script>", begin) - begin);
}

json embedded_data(const Drawing& drawing) {
  return json::parse(embedded(render_html("title", {&drawing, 1})));
}

TEST(Html, CarriesTheDrawingsInOrder) {
  std::array drawings = {draw(k1F1B), draw(kOverlap)};
  drawings[1].name = "overlap";
  drawings[1].source = "measured";
  const json data = json::parse(embedded(render_html("two runs", drawings)));
  EXPECT_EQ(data["title"], "two runs");
  ASSERT_EQ(data["runs"].size(), 2U);
  EXPECT_EQ(data["runs"][0]["name"], "1F1B");
  EXPECT_EQ(data["runs"][0]["label"], "two by two");
  EXPECT_EQ(data["runs"][0]["source"], "simulated");
  EXPECT_EQ(data["runs"][0]["stage_to_rank"], json({0, 1}));
  EXPECT_EQ(data["runs"][1]["name"], "overlap");
  EXPECT_EQ(data["runs"][1]["source"], "measured");
}

TEST(Html, HasAnEntryACellWithItsTimes) {
  const json run = embedded_data(draw(k1F1B))["runs"][0];
  ASSERT_EQ(run["ranks"].size(), 2U);
  EXPECT_EQ(run["ranks"][0]["actions"],
            json::parse(R"([["0F0", 0, 1], ["0F1", 1, 2], ["0B0", 4.5, 6.5], ["0B1", 7.5, 9.5]])"));
  EXPECT_EQ(run["ranks"][1]["actions"].size(), 4U);
}

TEST(Html, HasOneEntryForAnOverlapWithTheTimesOfItsParts) {
  const json block = embedded_data(draw(kOverlap))["runs"][0]["ranks"][0]["actions"];
  ASSERT_EQ(block.size(), 9U);
  EXPECT_EQ(block[3], json::parse(R"(["(1F1;1B0)OVERLAP_F_B", 1.5, 3, [[1.5, 3], [1.5, 3]]])"));
  const json serial =
      embedded_data(draw(parse_csv(kOverlap), OverlapCost::Serial))["runs"][0]["ranks"][0]["actions"];
  ASSERT_EQ(serial.size(), 9U);
  EXPECT_EQ(serial[3], json::parse(R"(["(1F1;1B0)OVERLAP_F_B", 1.5, 3, [[1.5, 2], [2, 3]]])"));
}

TEST(Html, HasTheMessagesOfALoweredPlan) {
  const Schedule plan = lower(parse_csv(k1F1B));
  const json run = embedded_data(draw(plan))["runs"][0];
  EXPECT_EQ(run["ranks"][0]["actions"].size(), plan.ranks[0].size());
  EXPECT_EQ(run["ranks"][1]["actions"].size(), plan.ranks[1].size());
}

TEST(Html, HasTheMetrics) {
  const json run = embedded_data(draw(k1F1B))["runs"][0];
  EXPECT_EQ(run["makespan"], 9.5);
  EXPECT_EQ(run["ideal"], 6);
  EXPECT_EQ(run["ranks"][0]["busy"], 6);
  EXPECT_EQ(run["ranks"][0]["idle"], 3.5);
  EXPECT_EQ(run["ranks"][0]["peak_activation"], 2);
  EXPECT_EQ(run["ranks"][1]["memory"], json::parse("[[1.25, 1], [4.25, 1], [7.25, 0]]"));
}

TEST(Html, PathPointsAtEntriesThatLeadToTheEnd) {
  for (const Drawing& drawing : {draw(k1F1B), draw_lowered(k1F1B), draw(kOverlap), draw_lowered(kOverlap)}) {
    const json run = embedded_data(drawing)["runs"][0];
    ASSERT_FALSE(run["critical_path"].empty());
    double last_end = 0;
    for (const json& at : run["critical_path"]) {
      ASSERT_EQ(at.size(), 2U);
      ASSERT_LT(at[0].get<std::size_t>(), run["ranks"].size());
      const json& actions = run["ranks"][at[0].get<std::size_t>()]["actions"];
      ASSERT_LT(at[1].get<std::size_t>(), actions.size());
      const json& action = actions[at[1].get<std::size_t>()];
      EXPECT_LE(last_end, action[2].get<double>());
      last_end = action[2].get<double>();
    }
    const json& end = run["critical_path"].back();
    EXPECT_EQ(run["ranks"][end[0].get<std::size_t>()]["actions"][end[1].get<std::size_t>()][2],
              run["makespan"]);
  }
}

TEST(Html, HasTheWaitsOfEachRank) {
  const json run = embedded_data(hung())["runs"][0];
  EXPECT_EQ(run["ranks"][0]["waits"], json::parse(R"([["0B0", 3, 12, "0B0 waits for <gradients>", true]])"));
  EXPECT_EQ(run["ranks"][1]["waits"], json::parse(R"([["1F0", 0, 5, "1F0 waited", false]])"));
  EXPECT_EQ(run["ranks"][1]["unfinished"], json({0}));
  EXPECT_FALSE(run["ranks"][0].contains("unfinished"));
}

TEST(Html, SaysNothingOfAPartThatOnlyAWholeRunHas) {
  const json run = embedded_data(hung())["runs"][0];
  for (const char* field :
       {"makespan", "ideal", "bubble_rate_makespan", "bubble_rate_span", "critical_path"}) {
    EXPECT_FALSE(run.contains(field)) << field;
  }
  for (const char* field : {"busy", "memory"}) EXPECT_FALSE(run["ranks"][0].contains(field)) << field;
  EXPECT_FALSE(embedded_data(draw(k1F1B))["runs"][0]["ranks"][0].contains("waits"));
}

TEST(Html, IsNotBrokenByNames) {
  Drawing drawing = draw(k1F1B);
  drawing.name = "</script><!--<script>\"\\&\n";
  drawing.label = "__PIPEWRIGHT_DATA__";
  const std::string page = render_html(drawing.name, {&drawing, 1});
  EXPECT_FALSE(contains(embedded(page), "<"));
  const json data = json::parse(embedded(page));
  EXPECT_EQ(data["title"], drawing.name);
  EXPECT_EQ(data["runs"][0]["name"], drawing.name);
  EXPECT_EQ(data["runs"][0]["label"], drawing.label);
}

TEST(Html, OfOneDrawingDiffersFromAnotherOnlyInItsData) {
  const std::string page = render_html("", {});
  const Drawing drawing = draw(k1F1B);
  const std::string other = render_html("title", {&drawing, 1});
  EXPECT_EQ(page.size() - embedded(page).size(), other.size() - embedded(other).size());
  EXPECT_EQ(json::parse(embedded(page))["runs"], json::array());
}

TEST(Html, LoadsNothing) {
  const std::string page = render_html("", {});
  for (const char* part : {" src=", "http://", "https://", "@import", "<link"})
    EXPECT_FALSE(contains(page, part));
}

// ---- trace

std::vector<json> events(const Drawing& drawing, const std::string& phase) {
  std::vector<json> result;
  const json trace = json::parse(render_trace(drawing));
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] == phase) result.push_back(event);
  }
  return result;
}

TEST(Trace, HasASpanAnActionInMicroseconds) {
  const auto spans = events(draw(k1F1B), "X");
  ASSERT_EQ(spans.size(), 8U);
  EXPECT_EQ(spans[2], json::parse(R"({"ph": "X", "pid": 0, "tid": 0, "name": "0B0", "cat": "compute",
                                      "ts": 4500, "dur": 2000, "args": {"stage": 0, "microbatch": 0}})"));
  EXPECT_EQ(spans[6], json::parse(R"({"ph": "X", "pid": 1, "tid": 0, "name": "1F1", "cat": "compute",
                                      "ts": 4250, "dur": 1000, "args": {"stage": 1, "microbatch": 1}})"));
}

TEST(Trace, PutsMessagesOnALaneOfTheirOwn) {
  const Schedule plan = lower(parse_csv(k1F1B));
  const auto spans = events(draw(plan), "X");
  ASSERT_EQ(spans.size(), plan.action_count());
  EXPECT_EQ(spans[0],
            json::parse(R"({"ph": "X", "pid": 0, "tid": 1, "name": "0UNSHARD", "cat": "communication",
                                      "ts": 0, "dur": 0, "args": {"stage": 0}})"));
  EXPECT_EQ(spans[2],
            json::parse(R"({"ph": "X", "pid": 0, "tid": 1, "name": "0SEND_F0", "cat": "communication",
                                      "ts": 1000, "dur": 250, "args": {"stage": 0, "microbatch": 0}})"));
}

TEST(Trace, HasASpanForEachPartOfAnOverlap) { EXPECT_EQ(events(draw(kOverlap), "X").size(), 10U); }

TEST(Trace, NamesRanksAndLanes) {
  const auto names = events(draw(k1F1B), "M");
  ASSERT_EQ(names.size(), 6U);
  EXPECT_EQ(names[3], json::parse(R"({"ph": "M", "pid": 1, "tid": 0, "name": "process_name",
                                      "args": {"name": "rank 1"}})"));
  EXPECT_EQ(names[4], json::parse(R"({"ph": "M", "pid": 1, "tid": 0, "name": "thread_name",
                                      "args": {"name": "compute"}})"));
  EXPECT_EQ(names[5], json::parse(R"({"ph": "M", "pid": 1, "tid": 1, "name": "thread_name",
                                      "args": {"name": "communication"}})"));
}

TEST(Trace, CountsTheActivationsHeld) {
  const auto counters = events(draw("0F0,0F1,0B0,0B1\n"), "C");
  ASSERT_EQ(counters.size(), 4U);
  EXPECT_EQ(counters[1], json::parse(R"({"ph": "C", "pid": 0, "name": "activation", "ts": 1000,
                                         "args": {"held": 2}})"));
  EXPECT_EQ(counters[3]["ts"], 6000);
  EXPECT_EQ(counters[3]["args"]["held"], 0);
}

TEST(Trace, NamesWhatItShows) {
  Drawing drawing = draw(k1F1B);
  drawing.name = "a\"b\\";
  EXPECT_EQ(json::parse(render_trace(drawing))["otherData"],
            (json{{"name", "a\"b\\"}, {"label", "two by two"}, {"source", "simulated"}}));
}

}  // namespace
}  // namespace pipewright
