#include "pipewright/schedule/csv.h"

#include <gtest/gtest.h>

#include <istream>
#include <sstream>
#include <streambuf>

#include "pipewright/base/error.h"

namespace pipewright {
namespace {

std::string reprint(std::string_view text) { return to_csv(parse_csv(text)); }

/// What the refusal of `text` says, or what it was read as.
std::string refusal(std::string_view text) {
  try {
    return "read as " + reprint(text);
  } catch (const ParseError& error) {
    return error.what();
  }
}

bool starts_with(const std::string& text, std::string_view start) { return text.starts_with(start); }

TEST(Csv, OfComputeOnlyIsWrittenAsItWasRead) {
  const std::string text =
      "0F0,0F1,,0B0,,0B1\n"
      ",1F0,(1F1;1B0)OVERLAP_F_B,1I1,1W1\n";
  EXPECT_EQ(reprint(text), text);
  EXPECT_FALSE(is_lowered(parse_csv(text)));
}

TEST(Csv, OfALoweredPlanIsWrittenAsItWasRead) {
  const std::string text =
      "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n"
      "1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1RESHARD\n";
  EXPECT_EQ(reprint(text), text);
  EXPECT_TRUE(is_lowered(parse_csv(text)));
}

TEST(Csv, IsReadFromAStreamAsFromText) {
  const std::string text = "0F0,,0B0\n1F0,1B0\n";
  std::istringstream in(text);
  EXPECT_EQ(parse_csv(in), parse_csv(text));
}

TEST(Csv, HoldsTheActionsOfEachRowInOrder) {
  const Schedule schedule = parse_csv("0F0,0B0\n1F0,1I0,1W0\n");
  EXPECT_EQ(schedule.ranks,
            (std::vector<std::vector<Action>>{
                {make_action(0, Kind::F, 0), make_action(0, Kind::B, 0)},
                {make_action(1, Kind::F, 0), make_action(1, Kind::I, 0), make_action(1, Kind::W, 0)}}));
  EXPECT_EQ(schedule.action_count(), 5U);
}

TEST(Csv, EmptyCellsAreBubbles) {
  EXPECT_EQ(parse_csv(",0F0, ,0B0\n").ranks[0],
            (std::vector{Action{}, make_action(0, Kind::F, 0), Action{}, make_action(0, Kind::B, 0)}));
}

TEST(Csv, TrailingCommaIsABubble) {
  EXPECT_EQ(parse_csv("0F0,\n").ranks[0], (std::vector{make_action(0, Kind::F, 0), Action{}}));
  EXPECT_EQ(parse_csv("0F0,").ranks[0], (std::vector{make_action(0, Kind::F, 0), Action{}}));
  EXPECT_EQ(reprint("0F0,\n"), "0F0,\n");
}

TEST(Csv, RowsMayDifferInLength) {
  const Schedule schedule = parse_csv("0F0\n1F0,1F1,1F2\n2F0,2F1\n");
  EXPECT_EQ(schedule.ranks[0].size(), 1U);
  EXPECT_EQ(schedule.ranks[1].size(), 3U);
  EXPECT_EQ(schedule.ranks[2].size(), 2U);
}

TEST(Csv, RowOfOneBubbleDiffersFromARowWithoutCells) {
  EXPECT_EQ(parse_csv("\"\"\n").ranks, (std::vector<std::vector<Action>>{{Action{}}}));
  EXPECT_EQ(parse_csv("\n").ranks, (std::vector<std::vector<Action>>{{}}));
  EXPECT_EQ(reprint("0F0\n\"\"\n"), "0F0\n\"\"\n");
  EXPECT_EQ(reprint(" \n"), "\"\"\n");
  EXPECT_EQ(reprint(",\n"), ",\n");
}

TEST(Csv, RankWithoutActionsIsAnEmptyLine) {
  const std::string text = "0F0\n\n1F0\n";
  EXPECT_EQ(parse_csv(text).rank_count(), 3);
  EXPECT_EQ(reprint(text), text);
}

TEST(Csv, RowsEndByAnyLineEnd) {
  const Schedule schedule = parse_csv("0F0,0F1\n1F0\n");
  EXPECT_EQ(parse_csv("0F0,0F1\r\n1F0\r\n"), schedule);
  EXPECT_EQ(parse_csv("0F0,0F1\r1F0\r"), schedule);
  EXPECT_EQ(parse_csv("0F0,0F1\r\n1F0\n"), schedule);
  EXPECT_EQ(parse_csv("0F0,0F1\n1F0"), schedule);
  EXPECT_EQ(parse_csv("0F0,0F1\r\n\r\n1F0").rank_count(), 3);
}

TEST(Csv, CellsMayBeQuoted) {
  EXPECT_EQ(reprint("\"0F0\",\"\",\" (0F1;1B0)OVERLAP_F_B \",\"0B1\""), "0F0,,(0F1;1B0)OVERLAP_F_B,0B1\n");
  EXPECT_EQ(reprint("\"0F0\"\r\n\"1F0\"\r\n"), "0F0\n1F0\n");
}

TEST(Csv, WritesAnOverlapAsOneCell) {
  Schedule schedule;
  schedule.ranks = {{fused(make_action(0, Kind::F, 1)), make_action(0, Kind::I, 0), Action{}}};
  EXPECT_EQ(to_csv(schedule), "(0F1;0I0)OVERLAP_F_B,\n");
  std::ostringstream out;
  write_csv(schedule, out);
  EXPECT_EQ(out.str(), to_csv(schedule));
}

TEST(Placement, IsInferredFromALoop) {
  const Schedule schedule = parse_csv("0F0,2F0\n1F0,3F0\n");
  EXPECT_EQ(schedule.placement, (Placement{0, 1, 0, 1}));
  EXPECT_EQ(schedule.placement, loop_placement(2, 2));
}

TEST(Placement, IsInferredFromAV) {
  const Schedule schedule = parse_csv("0F0,5F0\n1F0,4F0\n2F0,3F0\n");
  EXPECT_EQ(schedule.placement, (Placement{0, 1, 2, 2, 1, 0}));
  EXPECT_EQ(schedule.placement, v_placement(3, 2));
}

TEST(Placement, OfAStageThatNobodyNamesIsMinusOne) {
  EXPECT_EQ(parse_csv("3F0\n1F0\n").placement, (Placement{-1, 1, -1, 0}));
}

TEST(Placement, IsTheFirstRankThatNamesTheStage) {
  EXPECT_EQ(parse_csv("0F0\n0B0,1F0\n").placement, (Placement{0, 1}));
}

TEST(Placement, CountsCommunicationAndNoBubbles) {
  EXPECT_EQ(parse_csv(",,\n1UNSHARD,0RECV_B0\n").placement, (Placement{1, 1}));
  EXPECT_EQ(parse_csv(",,\n").placement, Placement{});
}

TEST(Placement, IsInferredAnew) {
  Schedule schedule = parse_csv("0F9\n1F0\n");
  schedule.ranks = {{make_action(0, Kind::F, 2)}};
  infer_placement(schedule);
  EXPECT_EQ(schedule.placement, Placement{0});
  EXPECT_EQ(schedule.microbatches, 3);
}

TEST(Microbatches, AreOneMoreThanTheHighestIndex) {
  EXPECT_EQ(parse_csv("0F0,0F7,0B2\n").microbatches, 8);
  EXPECT_EQ(parse_csv("0F16777215\n").microbatches, 16777216);
  EXPECT_EQ(parse_csv(",\n").microbatches, 0);
}

TEST(BadCsv, NamesRowRankColumnAndText) {
  EXPECT_EQ(refusal("0F0\n1F0,,1F\n"),
            "row 2 (rank 1), column 3: '1F' has no microbatch: an action is <stage><KIND><microbatch>, such "
            "as 2F0");
  EXPECT_EQ(refusal("0F0,0F1x"), "row 1 (rank 0), column 2: '0F1x' goes on after the microbatch with 'x'");
  EXPECT_EQ(refusal("0F0\r\n\r\n65536F0\r\n"),
            "row 3 (rank 2), column 1: '65536F0': the stage is beyond the limit of 65535");
  EXPECT_EQ(refusal("0F0,(0F1)OVERLAP_F_B,0B0\n"),
            "row 1 (rank 0), column 2: '(0F1)OVERLAP_F_B': an OVERLAP_F_B has two parts");
}

TEST(BadCsv, WithAnUnclosedQuoteIsRefused) {
  EXPECT_EQ(refusal("0F0,\"0F1,0F2\n"), "row 1 (rank 0), column 2: the quote is never closed: \"0F1,0F2\n");
  EXPECT_EQ(refusal("\""), "row 1 (rank 0), column 1: the quote is never closed: \"");
}

TEST(BadCsv, WithTextAfterTheQuoteIsRefused) {
  EXPECT_EQ(refusal("\"0F0\"x,0F1\n"), "row 1 (rank 0), column 1: text after the closing quote of \"0F0\"");
  EXPECT_EQ(refusal("0F0\n\"0F0\" ,0F1\n"),
            "row 2 (rank 1), column 1: text after the closing quote of \"0F0\"");
  EXPECT_EQ(refusal("\"0F0\"\"\""), "row 1 (rank 0), column 1: text after the closing quote of \"0F0\"");
}

TEST(BadCsv, WithBytesThatAreNoTextIsRefused) {
  EXPECT_TRUE(starts_with(refusal(std::string_view("0F0\0", 4)), "row 1 (rank 0), column 1: "));
  EXPECT_TRUE(starts_with(refusal("0F0,\xff\n"), "row 1 (rank 0), column 2: "));
}

TEST(BadCsv, WithTooLongACellIsRefused) {
  EXPECT_EQ(reprint(std::string(253, ' ') + "0F0"), "0F0\n");
  EXPECT_TRUE(starts_with(refusal(std::string(254, ' ') + "0F0"),
                          "row 1 (rank 0), column 1: the cell is longer than an action can be: "));
  EXPECT_TRUE(starts_with(refusal("0F0,\"" + std::string(257, ' ') + "\""),
                          "row 1 (rank 0), column 2: the cell is longer than an action can be: "));
}

TEST(BadCsv, WithTooManyRowsIsRefused) {
  std::string text;
  for (int row = 0; row < 65536; ++row) text += "0F0\n";
  EXPECT_EQ(parse_csv(text).rank_count(), 65536);
  EXPECT_EQ(refusal(text + "0F0\n"), "row 65537 (rank 65536), column 1: more than 65536 rows");
}

TEST(BadCsv, WithoutAnythingIsRefused) {
  EXPECT_EQ(refusal(""), "the schedule is empty: expected one row a rank");
  EXPECT_EQ(refusal(std::string_view()), "the schedule is empty: expected one row a rank");
}

/// Gives the same character for ever, and counts.
class Endless : public std::streambuf {
 public:
  explicit Endless(char c) : c_(c) {}
  std::size_t read() const { return read_; }

 protected:
  int_type underflow() override {
    // Ends one day all the same, so that a reader without limits fails instead of hanging.
    if (++read_ > 100'000'000) return traits_type::eof();
    setg(&c_, &c_, &c_ + 1);
    return traits_type::to_int_type(c_);
  }

 private:
  char c_;
  std::size_t read_ = 0;
};

std::size_t read_until_refused(char c) {
  Endless endless(c);
  std::istream in(&endless);
  EXPECT_THROW(parse_csv(in), ParseError);
  return endless.read();
}

TEST(BadCsv, WithAnEndlessCellIsRefusedWithoutReadingOn) {
  EXPECT_LE(read_until_refused('1'), 1000U);
  EXPECT_LE(read_until_refused(' '), 1000U);
}

TEST(BadCsv, WithEndlessRowsIsRefusedWithoutReadingOn) { EXPECT_LE(read_until_refused('\n'), 70'000U); }

}  // namespace
}  // namespace pipewright
