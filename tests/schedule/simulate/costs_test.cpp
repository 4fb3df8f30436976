#include "pipewright/schedule/costs.h"

#include <gtest/gtest.h>

#include <limits>
#include <sstream>
#include <tuple>

#include "pipewright/base/error.h"

namespace pipewright {
namespace {

const Placement kTwoStages = {0, 1};

Costs parse(const std::string& text, const Placement& placement = kTwoStages) {
  std::istringstream in(text);
  return parse_costs(in, placement);
}

/// What the refusal of `text` says.
std::string refusal(const std::string& text, const Placement& placement = kTwoStages) {
  try {
    parse(text, placement);
    return "accepted";
  } catch (const ParseError& error) {
    return error.what();
  }
}

TEST(UniformCosts, AreOneUnitOfEachForAStageARank) {
  const Costs costs = uniform_costs({0, 1, 2});
  ASSERT_EQ(costs.stages.size(), 3U);
  for (const StageCosts& stage : costs.stages) {
    EXPECT_EQ(stage.f, 1);
    EXPECT_EQ(stage.i, 1);
    EXPECT_EQ(stage.w, 1);
    EXPECT_EQ(stage.full_backward(), 2);
    EXPECT_EQ(stage.activation, 1);
    EXPECT_EQ(stage.held_for_w, std::nullopt);
    EXPECT_EQ(stage.message, 0);
  }
  EXPECT_EQ(costs.link.latency, 0);
  EXPECT_EQ(costs.link.bandwidth, std::numeric_limits<double>::infinity());
  EXPECT_TRUE(costs.links.empty());
  EXPECT_EQ(costs.overlap, OverlapCost::Sum);
}

TEST(UniformCosts, AreSharedByTheStagesOfARank) {
  const Costs costs = uniform_costs(v_placement(2, 2), {.f = 2, .i = 4, .w = 6, .comm = 0.5});
  ASSERT_EQ(costs.stages.size(), 4U);
  for (const StageCosts& stage : costs.stages) {
    EXPECT_EQ(stage.f, 1);
    EXPECT_EQ(stage.i, 2);
    EXPECT_EQ(stage.w, 3);
    EXPECT_EQ(stage.activation, 0.5);
  }
  EXPECT_EQ(costs.link.latency, 0.5);
}

TEST(UniformCosts, AreSharedByEachRanksOwnNumberOfStages) {
  const Costs costs = uniform_costs({0, 1, 0, 0, 0}, {.f = 8});
  ASSERT_EQ(costs.stages.size(), 5U);
  EXPECT_EQ(costs.stages[0].f, 2);
  EXPECT_EQ(costs.stages[1].f, 8);
  EXPECT_EQ(costs.stages[4].f, 2);
  EXPECT_EQ(costs.stages[0].activation, 0.25);
  EXPECT_EQ(costs.stages[1].activation, 1);
}

TEST(UniformCosts, AreWholeForAStageOnNoRank) {
  const Costs costs = uniform_costs({-1, 0});
  ASSERT_EQ(costs.stages.size(), 2U);
  EXPECT_EQ(costs.stages[0].f, 1);
  EXPECT_EQ(costs.stages[1].f, 1);
  EXPECT_TRUE(uniform_costs({}).stages.empty());
}

TEST(StageCosts, FullBackwardIsBothHalvesWhereNotGiven) {
  EXPECT_EQ((StageCosts{.i = 2, .w = 3}.full_backward()), 5);
  EXPECT_EQ((StageCosts{.i = 2, .w = 3, .b = 4}.full_backward()), 4);
}

TEST(CostsFile, WithoutFieldsGivesUniformCosts) {
  const Costs costs = parse("{}", {0, 1, 1});
  ASSERT_EQ(costs.stages.size(), 3U);
  EXPECT_EQ(costs.stages[0].f, 1);
  EXPECT_EQ(costs.stages[2].f, 0.5);
  EXPECT_EQ(costs.stages[2].activation, 0.5);
  EXPECT_EQ(costs.link.latency, 0);
  EXPECT_EQ(costs.link.bandwidth, std::numeric_limits<double>::infinity());
  EXPECT_TRUE(costs.links.empty());
  EXPECT_EQ(costs.overlap, OverlapCost::Sum);
}

TEST(CostsFile, GivesEveryFieldOfAStage) {
  const Costs costs = parse(R"({"stages": [
      {"f": 2, "i": 3, "w": 4, "b": 6.5, "activation": 5, "held_for_w": 1.5, "message": 7}, {}]})");
  const StageCosts& stage = costs.stages[0];
  EXPECT_EQ(stage.f, 2);
  EXPECT_EQ(stage.i, 3);
  EXPECT_EQ(stage.w, 4);
  EXPECT_EQ(stage.b, 6.5);
  EXPECT_EQ(stage.activation, 5);
  EXPECT_EQ(stage.held_for_w, 1.5);
  EXPECT_EQ(stage.message, 7);
}

TEST(CostsFile, LeavesAFieldThatIsNotGivenUniform) {
  const Costs costs = parse(R"({"stages": [{"f": 2}, {}, {}]})", {0, 1, 1});
  EXPECT_EQ(costs.stages[0].f, 2);
  EXPECT_EQ(costs.stages[0].w, 1);
  EXPECT_EQ(costs.stages[0].b, std::nullopt);
  EXPECT_EQ(costs.stages[1].f, 0.5);
}

TEST(CostsFile, AllowsZero) {
  const Costs costs =
      parse(R"({"stages": [{"f": 0, "i": 0, "w": 0, "b": 0, "activation": 0, "held_for_w": 0}, {}]})");
  EXPECT_EQ(costs.stages[0].f, 0);
  EXPECT_EQ(costs.stages[0].b, 0);
  EXPECT_EQ(costs.stages[0].held_for_w, 0);
}

TEST(CostsFile, GivesTheLink) {
  const Costs costs = parse(R"({"link": {"latency": 0.25, "bandwidth": 12}})");
  EXPECT_EQ(costs.link.latency, 0.25);
  EXPECT_EQ(costs.link.bandwidth, 12);
}

TEST(CostsFile, GivesLinksThatDifferFromTheLink) {
  const Costs costs =
      parse(R"({"links": [{"from": 0, "to": 1, "latency": 3}, {"from": 1, "to": 0, "bandwidth": 2}],
                                "link": {"latency": 0.25, "bandwidth": 12}})");
  ASSERT_EQ(costs.links.size(), 2U);
  EXPECT_EQ(costs.links[0].from, 0);
  EXPECT_EQ(costs.links[0].to, 1);
  EXPECT_EQ(costs.links[0].link.latency, 3);
  EXPECT_EQ(costs.links[0].link.bandwidth, 12);
  EXPECT_EQ(costs.links[1].from, 1);
  EXPECT_EQ(costs.links[1].to, 0);
  EXPECT_EQ(costs.links[1].link.latency, 0.25);
  EXPECT_EQ(costs.links[1].link.bandwidth, 2);
}

TEST(CostsFile, NamesTheCostOfAnOverlap) {
  EXPECT_EQ(parse(R"({"overlap": "sum"})").overlap, OverlapCost::Sum);
  EXPECT_EQ(parse(R"({"overlap": "max"})").overlap, OverlapCost::Max);
  EXPECT_EQ(parse(R"({"overlap": "serial"})").overlap, OverlapCost::Serial);
}

/// What is written is read again, and written as the same text.
void expect_same_when_read_again(const Costs& costs, const Placement& placement) {
  const Costs again = parse(to_json(costs), placement);
  ASSERT_EQ(again.stages.size(), costs.stages.size());
  for (std::size_t stage = 0; stage < costs.stages.size(); ++stage) {
    const StageCosts& read = again.stages[stage];
    const StageCosts& written = costs.stages[stage];
    EXPECT_EQ(std::tie(read.f, read.i, read.w, read.b, read.activation, read.held_for_w, read.message),
              std::tie(written.f, written.i, written.w, written.b, written.activation, written.held_for_w,
                       written.message))
        << "stage " << stage;
  }
  EXPECT_EQ(again.link.latency, costs.link.latency);
  EXPECT_EQ(again.link.bandwidth, costs.link.bandwidth);
  ASSERT_EQ(again.links.size(), costs.links.size());
  for (std::size_t i = 0; i < costs.links.size(); ++i) {
    EXPECT_EQ(again.links[i].from, costs.links[i].from);
    EXPECT_EQ(again.links[i].to, costs.links[i].to);
    EXPECT_EQ(again.links[i].link.latency, costs.links[i].link.latency);
    EXPECT_EQ(1 / again.links[i].link.bandwidth, 1 / costs.links[i].link.bandwidth) << "link " << i;
  }
  EXPECT_EQ(again.overlap, costs.overlap);
  EXPECT_EQ(to_json(again), to_json(costs));
}

TEST(CostsFile, IsReadAgainAsItWasWritten) {
  expect_same_when_read_again(uniform_costs({0, 1, 2, 0, 1}, {.f = 1.0 / 3, .i = 0.1, .w = 1e-300}),
                              {0, 1, 2, 0, 1});
  expect_same_when_read_again(
      {.stages = {{.f = 2, .i = 3, .w = 4, .b = 6.5, .activation = 5, .held_for_w = 1.5, .message = 1.0 / 7},
                  {.f = 0, .i = 0, .w = 0, .activation = 0}},
       .link = {.latency = 0.25, .bandwidth = 12},
       .links = {{.from = 0, .to = 1, .link = {.latency = 0, .bandwidth = 12}},
                 {.from = 1, .to = 0, .link = {.latency = 3, .bandwidth = 0.5}}},
       .overlap = OverlapCost::Serial},
      kTwoStages);
  expect_same_when_read_again({.stages = {{}, {}},
                               .link = {},
                               .links = {{.from = 0, .to = 1, .link = {.latency = 1}},
                                         {.from = 1, .to = 0, .link = {.latency = 2, .bandwidth = 9}}},
                               .overlap = OverlapCost::Max},
                              kTwoStages);
}

TEST(CostsFile, KeepsALinkUnlimitedBesideALimitedOne) {
  const Costs costs = {.stages = {{}, {}},
                       .link = {.latency = 0, .bandwidth = 4},
                       .links = {{.from = 0, .to = 1, .link = {.latency = 1}}}};
  const Costs again = parse(to_json(costs));
  ASSERT_EQ(again.links.size(), 1U);
  EXPECT_LT(1e100 / again.links[0].link.bandwidth, 1e-200);
}

TEST(BadCostsFile, WithUnknownFieldIsRefused) {
  EXPECT_EQ(refusal(R"({"stage": []})"), "costs: the file has an unknown field \"stage\"");
  EXPECT_EQ(refusal(R"({"stages": [{}, {"F": 1}]})"), "costs: stage 1 has an unknown field \"F\"");
  EXPECT_EQ(refusal(R"({"link": {"delay": 1}})"), "costs: link has an unknown field \"delay\"");
  EXPECT_EQ(refusal(R"({"links": [{"from": 0, "to": 1}, {"from": 0, "to": 1, "x": 1}]})"),
            "costs: links[1] has an unknown field \"x\"");
}

TEST(BadCostsFile, WithANumberThatIsNoneIsRefused) {
  for (const std::string field : {"f", "i", "w", "b", "activation", "held_for_w", "message"}) {
    for (const std::string value : {"-1", "-0.001", "\"1\"", "\"NaN\"", "null", "true", "[1]", "{}"}) {
      EXPECT_EQ(refusal(R"({"stages": [{}, {")" + field + "\": " + value + "}]}"),
                "costs: stage 1 " + field + " must be a number of at least 0");
    }
  }
  EXPECT_EQ(refusal(R"({"link": {"latency": -1}})"), "costs: link latency must be a number of at least 0");
  EXPECT_EQ(refusal(R"({"link": {"bandwidth": "inf"}})"),
            "costs: link bandwidth must be a number of at least 0");
}

TEST(BadCostsFile, WithANumberThatJsonCannotHoldIsRefused) {
  for (const std::string value : {"NaN", "Infinity", "1e999", "-1e999"}) {
    EXPECT_TRUE(refusal(R"({"stages": [{}, {"f": )" + value + "}]}").starts_with("costs: not valid JSON: "))
        << value;
  }
}

TEST(BadCostsFile, WithAnotherNumberOfStagesIsRefused) {
  const std::string message = "costs: the file stages must be a list of 2, one for each stage";
  EXPECT_EQ(refusal(R"({"stages": [{}]})"), message);
  EXPECT_EQ(refusal(R"({"stages": [{}, {}, {}]})"), message);
  EXPECT_EQ(refusal(R"({"stages": {"0": {}, "1": {}}})"), message);
}

TEST(BadCostsFile, WithAStageThatIsNoObjectIsRefused) {
  EXPECT_EQ(refusal(R"({"stages": [{}, 1]})"), "costs: stage 1 must be an object");
}

TEST(BadCostsFile, WithoutBandwidthIsRefused) {
  EXPECT_EQ(refusal(R"({"link": {"bandwidth": 0}})"), "costs: link bandwidth must be more than 0");
  EXPECT_EQ(refusal(R"({"links": [{"from": 0, "to": 1, "bandwidth": 0}]})"),
            "costs: links[0] bandwidth must be more than 0");
}

TEST(BadCostsFile, WithLinksThatAreNoneIsRefused) {
  EXPECT_EQ(refusal(R"({"link": 1})"), "costs: link must be an object");
  EXPECT_EQ(refusal(R"({"links": {}})"), "costs: the file links must be a list");
  EXPECT_EQ(refusal(R"({"links": [1]})"), "costs: links[0] must be an object");
}

TEST(BadCostsFile, WithRanksOutOfRangeIsRefused) {
  for (const std::string rank : {"2", "-1", "4294967296", "9223372036854775808", "18446744073709551615"}) {
    EXPECT_EQ(refusal(R"({"links": [{"from": )" + rank + R"(, "to": 1}]})"),
              "costs: links[0] from is not a rank of 0 to 1");
    EXPECT_EQ(refusal(R"({"links": [{"from": 0, "to": )" + rank + "}]}"),
              "costs: links[0] to is not a rank of 0 to 1");
  }
}

TEST(BadCostsFile, WithoutRanksIsRefused) {
  EXPECT_EQ(refusal(R"({"links": [{"to": 1}]})"), "costs: links[0] from must be a rank");
  EXPECT_EQ(refusal(R"({"links": [{"from": 0}]})"), "costs: links[0] to must be a rank");
  EXPECT_EQ(refusal(R"({"links": [{"from": 0.5, "to": 1}]})"), "costs: links[0] from must be a rank");
  EXPECT_EQ(refusal(R"({"links": [{"from": "0", "to": 1}]})"), "costs: links[0] from must be a rank");
}

TEST(BadCostsFile, WithUnknownOverlapIsRefused) {
  const std::string message = "costs: the file overlap must be \"sum\", \"max\" or \"serial\"";
  EXPECT_EQ(refusal(R"({"overlap": "Sum"})"), message);
  EXPECT_EQ(refusal(R"({"overlap": 1})"), message);
  EXPECT_EQ(refusal(R"({"overlap": null})"), message);
}

TEST(BadCostsFile, ThatIsNoJsonIsRefused) {
  for (const std::string text : {"", "{", "stages: []", "{} {}", "{\"link\": \"\xff\"}", "{'link': {}}"}) {
    EXPECT_TRUE(refusal(text).starts_with("costs: not valid JSON: ")) << text;
  }
}

TEST(BadCostsFile, ThatIsNoObjectIsRefused) {
  for (const char* text : {"[]", "1", "null", "\"costs\""}) {
    EXPECT_EQ(refusal(text), "costs: the file must be an object") << text;
  }
}

TEST(BadCostsFile, ThatIsNestedDeeplyIsRefused) {
  const std::string open(100'000, '[');
  EXPECT_TRUE(refusal(open).starts_with("costs: not valid JSON: "));
  EXPECT_EQ(refusal(open + std::string(100'000, ']')), "costs: the file must be an object");
}

}  // namespace
}  // namespace pipewright
