#include "pipewright/schedule/action.h"

#include <gtest/gtest.h>

#include "pipewright/base/error.h"

namespace pipewright {
namespace {

std::vector<Action> parse(std::string_view text) {
  std::vector<Action> actions;
  parse_cell(text, actions);
  return actions;
}

std::string reprint(std::string_view text) { return cell_text(parse(text)); }

/// What the refusal of `text` says, or what it was read as.
std::string refusal(std::string_view text) {
  try {
    return "read as " + reprint(text);
  } catch (const ParseError& error) {
    return error.what();
  }
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != text.npos; }

TEST(Action, TakesEightBytes) { EXPECT_EQ(sizeof(Action), 8U); }

TEST(Action, PrintsAsStageKindMicrobatch) {
  EXPECT_EQ(to_text(make_action(2, Kind::F, 0)), "2F0");
  EXPECT_EQ(to_text(make_action(1, Kind::B, 3)), "1B3");
  EXPECT_EQ(to_text(make_action(3, Kind::I, 4)), "3I4");
  EXPECT_EQ(to_text(make_action(3, Kind::W, 4)), "3W4");
  EXPECT_EQ(to_text(make_action(0, Kind::SendF, 1)), "0SEND_F1");
  EXPECT_EQ(to_text(make_action(1, Kind::RecvF, 1)), "1RECV_F1");
  EXPECT_EQ(to_text(make_action(2, Kind::SendB, 2)), "2SEND_B2");
  EXPECT_EQ(to_text(make_action(1, Kind::RecvB, 2)), "1RECV_B2");
}

TEST(Action, PrintsWithoutMicrobatchWhereItHasNone) {
  EXPECT_EQ(to_text(make_action(1, Kind::Unshard)), "1UNSHARD");
  EXPECT_EQ(to_text(make_action(1, Kind::Reshard)), "1RESHARD");
  EXPECT_EQ(to_text(make_action(1, Kind::ReduceGrad)), "1REDUCE_GRAD");
  EXPECT_EQ(to_text(Action{}), "");
}

TEST(Action, PrintsAloneWithoutItsFuseMark) { EXPECT_EQ(to_text(fused(make_action(0, Kind::F, 3))), "0F3"); }

TEST(Action, PrintsItsLimits) { EXPECT_EQ(to_text(make_action(65535, Kind::F, 16777215)), "65535F16777215"); }

TEST(Message, NamesItsPeerStageWhereThatIsNoNeighbour) {
  EXPECT_EQ(to_text(make_message(0, Kind::SendF, 2, 1)), "0SEND_F2");
  EXPECT_EQ(to_text(make_message(0, Kind::SendF, 2, 3)), "0SEND_F2:3");
  EXPECT_EQ(to_text(make_message(3, Kind::RecvF, 2, 0)), "3RECV_F2:0");
  EXPECT_EQ(to_text(make_message(3, Kind::SendB, 2, 0)), "3SEND_B2:0");
  EXPECT_EQ(to_text(make_message(0, Kind::RecvB, 2, 3)), "0RECV_B2:3");
  for (const char* text :
       {"0SEND_F2:3", "3RECV_F2:0", "3SEND_B2:0", "0RECV_B2:3", "65280SEND_F16777215:65535"}) {
    EXPECT_EQ(reprint(text), text);
  }
  EXPECT_EQ(peer_stage(parse("65280SEND_F0:65535")[0]), 65535);
}

TEST(Message, WithAPeerStageThatCannotBeIsRefused) {
  EXPECT_EQ(refusal("0SEND_F2:1"), "'0SEND_F2:1': a neighbour stage is not written out");
  EXPECT_EQ(refusal("1RECV_F2:0"), "'1RECV_F2:0': a neighbour stage is not written out");
  EXPECT_EQ(refusal("1SEND_F2:1"), "'1SEND_F2:1': the peer stage of a SEND_F comes after its own");
  EXPECT_EQ(refusal("3SEND_F2:0"), "'3SEND_F2:0': the peer stage of a SEND_F comes after its own");
  EXPECT_EQ(refusal("0RECV_F2:3"), "'0RECV_F2:3': the peer stage of a RECV_F comes before its own");
  EXPECT_EQ(refusal("0SEND_F2:256"), "'0SEND_F2:256': the stages are more than 255 apart");
  EXPECT_EQ(refusal("0SEND_F2:65536"), "'0SEND_F2:65536': the peer stage is beyond the limit of 65535");
  EXPECT_EQ(refusal("0SEND_F2:3x"), "'0SEND_F2:3x' goes on after the peer stage with 'x'");
  EXPECT_EQ(refusal("0SEND_F2:-3"),
            "'0SEND_F2:-3' has no peer stage: an action is <stage><KIND><microbatch>, such as 2F0");
  EXPECT_EQ(refusal("0F2:3"), "'0F2:3' goes on after the microbatch with ':3'");
  EXPECT_EQ(refusal("0UNSHARD:3"),
            "'0UNSHARD:3' has an unknown kind 'UNSHARD:': it is one of F, B, I, W, SEND_F, "
            "RECV_F, SEND_B, RECV_B, UNSHARD, RESHARD, REDUCE_GRAD or (part;part)OVERLAP_F_B");
}

class EveryKind : public testing::TestWithParam<std::pair<const char*, Action>> {};

TEST_P(EveryKind, IsReadAndPrintedAlike) {
  const auto& [text, action] = GetParam();
  EXPECT_EQ(parse(text), std::vector{action});
  EXPECT_EQ(reprint(text), text);
}

INSTANTIATE_TEST_SUITE_P(Action, EveryKind,
                         testing::Values(std::pair{"2F0", make_action(2, Kind::F, 0)},
                                         std::pair{"1B3", make_action(1, Kind::B, 3)},
                                         std::pair{"3I4", make_action(3, Kind::I, 4)},
                                         std::pair{"3W4", make_action(3, Kind::W, 4)},
                                         std::pair{"0SEND_F1", make_action(0, Kind::SendF, 1)},
                                         std::pair{"1RECV_F1", make_action(1, Kind::RecvF, 1)},
                                         std::pair{"2SEND_B2", make_action(2, Kind::SendB, 2)},
                                         std::pair{"1RECV_B2", make_action(1, Kind::RecvB, 2)},
                                         std::pair{"1UNSHARD", make_action(1, Kind::Unshard)},
                                         std::pair{"1RESHARD", make_action(1, Kind::Reshard)},
                                         std::pair{"1REDUCE_GRAD", make_action(1, Kind::ReduceGrad)},
                                         std::pair{"65535W16777215", make_action(65535, Kind::W, 16777215)}),
                         [](const auto& test) {
                           return std::string(to_text(test.param.second.kind)) +
                                  std::to_string(test.param.second.stage);
                         });

TEST(Cell, OfNothingIsABubble) {
  EXPECT_EQ(parse(""), std::vector{Action{}});
  EXPECT_EQ(parse(" \t\r\n"), std::vector{Action{}});
  EXPECT_EQ(reprint(" "), "");
}

TEST(Cell, MayHaveWhiteSpaceAround) { EXPECT_EQ(reprint(" \t2F0\r\n"), "2F0"); }

TEST(Cell, MayHaveLeadingZeros) {
  EXPECT_EQ(reprint("002F0010"), "2F10");
  EXPECT_EQ(reprint("00000000000000000000F1"), "0F1");
}

TEST(Cell, IsAppendedToWhatIsThere) {
  std::vector<Action> actions = parse("0F0");
  parse_cell("0F1", actions);
  EXPECT_EQ(actions, (std::vector{make_action(0, Kind::F, 0), make_action(0, Kind::F, 1)}));
  std::string text = "0F0,";
  append_cell_text(parse("0F1"), text);
  EXPECT_EQ(text, "0F0,0F1");
}

TEST(Overlap, IsItsPartsInARowTheFirstFused) {
  EXPECT_EQ(parse("(0F3;7B1)OVERLAP_F_B"),
            (std::vector{fused(make_action(0, Kind::F, 3)), make_action(7, Kind::B, 1)}));
}

TEST(Overlap, KeepsTheOrderOfItsParts) {
  for (const char* text :
       {"(0F3;7B1)OVERLAP_F_B", "(7B1;0F3)OVERLAP_F_B", "(0F3;7I1)OVERLAP_F_B", "(7I1;0F3)OVERLAP_F_B"}) {
    EXPECT_EQ(reprint(text), text);
  }
}

TEST(Overlap, MayHaveWhiteSpaceAroundItsParts) {
  EXPECT_EQ(reprint(" ( 0F3 ;\t7B1 ) OVERLAP_F_B "), "(0F3;7B1)OVERLAP_F_B");
}

TEST(Overlap, OfOneOrThreePartsIsRefused) {
  EXPECT_EQ(refusal("(0F3)OVERLAP_F_B"), "'(0F3)OVERLAP_F_B': an OVERLAP_F_B has two parts");
  EXPECT_EQ(refusal("(0F3;7B1;0F4)OVERLAP_F_B"), "'(0F3;7B1;0F4)OVERLAP_F_B': an OVERLAP_F_B has two parts");
  EXPECT_EQ(refusal("()OVERLAP_F_B"), "'()OVERLAP_F_B': an OVERLAP_F_B has two parts");
}

TEST(Overlap, OfOtherThanAForwardAndABackwardIsRefused) {
  for (const std::string text : {"(0F3;0F4)OVERLAP_F_B", "(0B3;7B1)OVERLAP_F_B", "(0F3;7W1)OVERLAP_F_B",
                                 "(0F3;7RECV_B1)OVERLAP_F_B", "(0UNSHARD;7B1)OVERLAP_F_B"}) {
    EXPECT_EQ(refusal(text), "'" + text + "': the parts of an OVERLAP_F_B are one F and one B or I");
  }
}

TEST(Overlap, OfAnotherFormIsRefused) {
  for (const std::string text : {"((0F3;7B1)OVERLAP_F_B;7B2)OVERLAP_F_B", "(0F3;7B1)", "(0F3;7B1", "(",
                                 "(0F3;7B1)OVERLAP", "(0F3;7B1)OVERLAP_F_B1", "(0F3;7B1))OVERLAP_F_B"}) {
    EXPECT_EQ(refusal(text), "'" + text + "' is not of the form (0F1;1B0)OVERLAP_F_B");
  }
}

TEST(Overlap, NamesThePartThatIsWrong) {
  EXPECT_TRUE(contains(refusal("(0F3;7Q1)OVERLAP_F_B"), "'7Q1' has an unknown kind 'Q'"));
  EXPECT_TRUE(contains(refusal("(;7B1)OVERLAP_F_B"), "'' has no stage"));
}

TEST(BadAction, WithoutStageIsRefused) {
  for (const std::string text : {"F0", "-1F0", "+1F0", "x", "UNSHARD", ";"}) {
    EXPECT_EQ(refusal(text),
              "'" + text + "' has no stage: an action is <stage><KIND><microbatch>, such as 2F0");
  }
}

TEST(BadAction, OfUnknownKindIsRefusedWithTheKindsThereAre) {
  EXPECT_EQ(
      refusal("2Q0"),
      "'2Q0' has an unknown kind 'Q': it is one of F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, "
      "RESHARD, REDUCE_GRAD or (part;part)OVERLAP_F_B");
  EXPECT_TRUE(contains(refusal("2f0"), "'2f0' has an unknown kind 'f'"));
  EXPECT_TRUE(contains(refusal("2"), "'2' has an unknown kind ''"));
  EXPECT_TRUE(contains(refusal("2 F0"), "'2 F0' has an unknown kind ' F'"));
  EXPECT_TRUE(contains(refusal("2SEND0"), "'2SEND0' has an unknown kind 'SEND'"));
  EXPECT_TRUE(contains(refusal("2F-1"), "'2F-1' has an unknown kind 'F-'"));
}

TEST(BadAction, WithoutMicrobatchIsRefused) {
  EXPECT_EQ(refusal("2F"), "'2F' has no microbatch: an action is <stage><KIND><microbatch>, such as 2F0");
  EXPECT_TRUE(contains(refusal("2SEND_F"), "'2SEND_F' has no microbatch"));
}

TEST(BadAction, WithMicrobatchWhereNoneBelongsIsRefused) {
  EXPECT_EQ(refusal("1UNSHARD3"), "'1UNSHARD3': UNSHARD takes no microbatch");
  EXPECT_EQ(refusal("1RESHARD0"), "'1RESHARD0': RESHARD takes no microbatch");
  EXPECT_EQ(refusal("1REDUCE_GRAD7"), "'1REDUCE_GRAD7': REDUCE_GRAD takes no microbatch");
}

TEST(BadAction, ThatGoesOnIsRefused) {
  EXPECT_EQ(refusal("2F0x"), "'2F0x' goes on after the microbatch with 'x'");
  EXPECT_EQ(refusal("2F0 1F0"), "'2F0 1F0' goes on after the microbatch with ' 1F0'");
  EXPECT_EQ(refusal("2F0.5"), "'2F0.5' goes on after the microbatch with '.5'");
}

TEST(BadAction, BeyondTheLimitsIsRefused) {
  for (const std::string text :
       {"65536F0", "1000000000000F0", "4294967296F0", "18446744073709551616F0", "65536UNSHARD"}) {
    EXPECT_EQ(refusal(text), "'" + text + "': the stage is beyond the limit of 65535");
  }
  for (const std::string text : {"0F16777216", "0F4294967296", "0W1000000000000"}) {
    EXPECT_EQ(refusal(text), "'" + text + "': the microbatch is beyond the limit of 16777215");
  }
  const std::string huge = "0F" + std::string(1000, '9');
  EXPECT_EQ(refusal(huge), "'" + huge + "': the microbatch is beyond the limit of 16777215");
}

TEST(BadAction, LeavesTheListAsItWas) {
  std::vector<Action> actions = parse("0F0");
  EXPECT_THROW(parse_cell("(0F1;7Q0)OVERLAP_F_B", actions), ParseError);
  EXPECT_EQ(actions, parse("0F0"));
}

/// 0F0,(0F1;1B0)OVERLAP_F_B,1B1
std::vector<Action> row_with_overlap() {
  return {make_action(0, Kind::F, 0), fused(make_action(0, Kind::F, 1)), make_action(1, Kind::B, 0),
          make_action(1, Kind::B, 1)};
}

TEST(CellSize, CountsThePartsOfAnOverlap) {
  const auto row = row_with_overlap();
  EXPECT_EQ(cell_size(row, 0), 1U);
  EXPECT_EQ(cell_size(row, 1), 2U);
  EXPECT_EQ(cell_size(row, 3), 1U);
}

TEST(CellSize, EndsWithTheList) {
  const std::vector row = {make_action(0, Kind::F, 0), fused(make_action(0, Kind::F, 1))};
  EXPECT_EQ(cell_size(row, 1), 1U);
}

TEST(StepOf, CountsAnOverlapOnce) {
  const auto row = row_with_overlap();
  EXPECT_EQ(step_of(row, 0), 0U);
  EXPECT_EQ(step_of(row, 1), 1U);
  EXPECT_EQ(step_of(row, 2), 1U);
  EXPECT_EQ(step_of(row, 3), 2U);
}

}  // namespace
}  // namespace pipewright
