#pragma once

#include <iosfwd>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/schedule/schedule.h"

namespace pipewright {

/// What one microbatch costs on one stage. Times and sizes are in whatever unit
/// the user measures in.
struct StageCosts {
  double f = 1;
  double i = 1;
  double w = 1;
  /// Full backward; I + W where it is not given.
  std::optional<double> b = {};
  /// Memory that F takes and B, or I and W together, give back.
  double activation = 1;
  /// What is held after I until W, gradients for W included; as much where not given.
  std::optional<double> held_for_w = {};
  /// Size of a message to the next stage or over a skip, and of its gradient on the way back.
  double message = 0;

  double full_backward() const { return b.value_or(i + w); }
};

/// The way between two ranks: a message takes latency + size / bandwidth, and
/// occupies the link for size / bandwidth.
struct LinkCosts {
  double latency = 0;
  double bandwidth = std::numeric_limits<double>::infinity();
};

/// What an OVERLAP_F_B costs.
enum class OverlapCost {
  Sum,     ///< One block: starts when both parts can, ends together, costs the sum.
  Max,     ///< One block that costs as much as its longer part.
  Serial,  ///< The parts one after the other, each as soon as it can.
};

struct Costs {
  std::vector<StageCosts> stages;
  LinkCosts link;
  /// Links that differ, by sending and receiving rank.
  struct LinkOverride {
    Rank from;
    Rank to;
    LinkCosts link;
  };
  std::vector<LinkOverride> links = {};
  OverlapCost overlap = OverlapCost::Sum;
};

/// Times of a rank's whole share of one microbatch: each of its V stages takes
/// 1/V of them, and of one unit of activation. `comm` is a latency.
struct RankCosts {
  double f = 1;
  double i = 1;
  double w = 1;
  double comm = 0;
};
Costs uniform_costs(const Placement& placement, const RankCosts& rank = {});

/// Reads costs from JSON (docs/costs_format.md). `placement` says how many stages
/// and ranks there are. Throws ParseError that names the field.
Costs parse_costs(std::istream& in, const Placement& placement);

/// The same JSON: what `parse_costs` reads from it simulates alike. REQUIRES: numbers
/// that are finite, but for bandwidths.
std::string to_json(const Costs& costs);

}  // namespace pipewright
