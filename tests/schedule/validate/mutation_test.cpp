// Broken on purpose: whatever would hang or compute the wrong thing must be
// caught, and what still computes the right thing must not be refused.

#include <gtest/gtest.h>

#include <iomanip>
#include <iostream>
#include <sstream>

#include "pipewright/schedule/csv.h"
#include "pipewright/schedule/deadlock.h"
#include "pipewright/schedule/generate.h"
#include "pipewright/schedule/lower.h"
#include "pipewright/schedule/validate.h"
#include "schedule/every_schedule.h"
#include "schedule/mutants.h"
#include "schedule/plan_interpreter.h"
#include "schedule/random_skips.h"

namespace pipewright {
namespace {

std::vector<Mutation> mutations_of(const Schedule& schedule, Format format) {
  std::vector all = {Mutation::Drop, Mutation::Swap, Mutation::Duplicate, Mutation::Move};
  if (format == Format::Lowered && schedule.stage_count() > 2) all.push_back(Mutation::Redirect);
  return all;
}

bool accepts(const Schedule& schedule, Format format) {
  if (!validate(schedule, format).empty()) return false;
  return format != Format::Lowered || prove_deadlock_free(schedule).free();
}

struct Tally {
  int bad = 0;
  int good = 0;
  int missed = 0;
  int missed_in_csv = 0;
  int refused_though_right = 0;
};

std::string describe(const ScheduleSpec& spec, Mutation mutation, const Schedule& mutant) {
  std::ostringstream text;
  text << spec.name << " p=" << spec.ranks << " m=" << spec.microbatches << " mutation "
       << static_cast<int>(mutation) << "\n"
       << to_csv(mutant);
  return text.str();
}

void judge(const Schedule& original, Format format, const ScheduleSpec& spec, std::mt19937& random,
           Tally& tally) {
  constexpr int kEach = 60;
  ASSERT_EQ(interpret(original, original), Outcome::Right);
  for (const Mutation mutation : mutations_of(original, format)) {
    for (int i = 0; i < kEach; ++i) {
      const Schedule mutant = mutate(original, mutation, random);
      const bool right = interpret(mutant, original) == Outcome::Right;
      const bool accepted = accepts(mutant, format);
      const bool accepted_as_csv = accepts(parse_csv(to_csv(mutant)), format);
      ++(right ? tally.good : tally.bad);
      tally.missed += !right && accepted ? 1 : 0;
      tally.missed_in_csv += !right && accepted_as_csv ? 1 : 0;
      tally.refused_though_right += right && !accepted ? 1 : 0;
      EXPECT_FALSE(!right && accepted) << "missed: " << describe(spec, mutation, mutant);
      EXPECT_FALSE(!right && accepted_as_csv) << "missed as CSV: " << describe(spec, mutation, mutant);
      EXPECT_FALSE(right && !accepted)
          << "refused: " << describe(spec, mutation, mutant) << to_text(validate(mutant, format).front());
      if (testing::Test::HasFailure()) return;
    }
  }
}

class Mutants : public testing::TestWithParam<ScheduleInfo> {};

TEST_P(Mutants, AreCaughtExactlyWhenTheyWouldHangOrComputeWrongly) {
  std::mt19937 random(20240517);
  std::array<Tally, 5> tallies{};
  for (const Rank ranks : {2, 3, 4}) {
    for (const Microbatch microbatches : {2, 3, 5}) {
      const ScheduleSpec spec{
          .name = std::string(GetParam().name), .ranks = ranks, .microbatches = microbatches};
      const Schedule schedule = make_schedule(spec);
      judge(schedule, Format::ComputeOnly, spec, random, tallies[0]);
      judge(lower(schedule), Format::Lowered, spec, random, tallies[1]);
      judge(lower(schedule, {.defer_receives = true}), Format::Lowered, spec, random, tallies[2]);
      Schedule skipping = schedule;
      skipping.skips = random_skips(schedule.stage_count(), random);
      judge(lower(skipping), Format::Lowered, spec, random, tallies[3]);
      judge(lower(skipping, {.defer_receives = true}), Format::Lowered, spec, random, tallies[4]);
      if (HasFailure()) return;
    }
  }
  constexpr std::array<const char*, 5> kNames = {"compute-only", "lowered", "deferred", "with skips", "both"};
  for (std::size_t i = 0; i < tallies.size(); ++i) {
    std::cout << std::setw(22) << GetParam().name << std::setw(14) << kNames[i] << ": " << tallies[i].bad
              << " bad mutants, " << tallies[i].missed << " missed, " << tallies[i].missed_in_csv
              << " missed as CSV; " << tallies[i].good << " harmless, " << tallies[i].refused_though_right
              << " refused\n";
    EXPECT_GT(tallies[i].bad, 500);
  }
}

INSTANTIATE_TEST_SUITE_P(EverySchedule, Mutants, every_schedule(), schedule_test_name);

}  // namespace
}  // namespace pipewright
