#include "options.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <set>

#include "files.h"
#include "pipewright/base/error.h"
#include "pipewright/schedule/simulate.h"

namespace pipewright::cli {
namespace {

/// For options that take a time: a finite number, not negative.
const CLI::Validator kTime(
    [](const std::string& text) -> std::string {
      const double value = std::strtod(text.c_str(), nullptr);
      if (value >= 0 && std::isfinite(value)) return {};
      return "a time is a number of at least 0, not " + text;
    },
    "TIME");

}  // namespace

void SizeOptions::add_to(CLI::App& command, bool required) {
  command.add_option("-p,--ranks", ranks, "Number of pipeline ranks")->required(required);
  command.add_option("-m,--microbatches", microbatches, "Number of microbatches, any from 1 on")
      ->required(required);
  command.add_option("-v,--stages-per-rank", stages_per_rank,
                     "Stages on each rank; each schedule has its own default ('pipewright list')");
  command
      .add_option("--placement", placement,
                  "Where ForwardOnly puts its stages: loop (0 1 0 1) or v (0 1 1 0)")
      ->check(CLI::IsMember({"loop", "v"}))
      ->capture_default_str();
}

ScheduleSpec SizeOptions::spec(const std::string& name) const {
  ScheduleSpec spec{
      .name = name, .ranks = ranks, .microbatches = microbatches, .stages_per_rank = stages_per_rank};
  if (placement == "v") {
    if (ranks < 1 || ranks > kMaxRanks || stages_per_rank < 0 || stages_per_rank > kMaxStages / ranks) {
      throw ArgumentError("--placement v needs --ranks and --stages-per-rank within their limits");
    }
    spec.placement = v_placement(ranks, std::max(1, stages_per_rank));
  }
  return spec;
}

SizeOptions SizeOptions::among_others(const std::string& name) const {
  SizeOptions own = *this;
  const ScheduleInfo& info = find_schedule(name);
  if (info.min_stages_per_rank == info.max_stages_per_rank) own.stages_per_rank = 0;
  return own;
}

CLI::Option* SkipOptions::add_to(CLI::App& command) {
  return command
      .add_option("--skip", skips,
                  "FROM:TO: stage FROM hands values directly to stage TO, too; may be repeated")
      ->allow_extra_args(false);
}

void SkipOptions::apply(Schedule& schedule) const {
  std::set<Skip> all(schedule.skips.begin(), schedule.skips.end());
  for (const std::string& text : skips) {
    Skip skip{};
    const char* end = text.data() + text.size();
    const auto from = std::from_chars(text.data(), end, skip.from);
    const bool colon = from.ec == std::errc() && from.ptr != end && *from.ptr == ':';
    const auto to = std::from_chars(colon ? from.ptr + 1 : end, end, skip.to);
    if (!colon || to.ec != std::errc() || to.ptr != end) {
      throw ArgumentError("--skip takes two stages, FROM:TO, not '" + text + "'");
    }
    all.insert(skip);
  }
  schedule.skips.assign(all.begin(), all.end());
}

void SourceOptions::add_to(CLI::App& command) {
  auto* by_name = command.add_option("name", name, "A schedule's name, in any case ('pipewright list')");
  sizes.add_to(command, false);
  command.add_option("--csv", csv, "Read the schedule from this CSV file instead; - for standard input")
      ->excludes(by_name);
  skips.add_to(command);
  command.add_flag("--lowered", lowered, "Lower the schedule first: with its messages");
}

Schedule SourceOptions::load() const {
  if (name.empty() && csv.empty()) throw ArgumentError("give the name of a schedule, or a file with --csv");
  if (!name.empty() && (sizes.ranks == 0 || sizes.microbatches == 0)) {
    throw ArgumentError("a schedule by name needs --ranks and --microbatches");
  }
  Schedule schedule = csv.empty() ? make_schedule(sizes.spec(name)) : read_schedule(csv);
  skips.apply(schedule);
  return lowered && !is_lowered(schedule) ? lower(std::move(schedule)) : schedule;
}

std::string SourceOptions::title() const {
  if (name.empty()) return csv == "-" ? "standard input" : csv;
  return std::string(find_schedule(name).name);
}

void CostOptions::add_to(CLI::App& command) {
  auto* f =
      command.add_option("--f", rank.f, "Time of a rank's forward of one microbatch, over all its stages");
  auto* i = command.add_option("--i", rank.i, "Time of its input gradients");
  auto* w =
      command.add_option("--w", rank.w, "Time of its weight gradients; a full backward takes --i plus --w");
  auto* comm = command.add_option("--comm", rank.comm, "Time of a message between ranks");
  command
      .add_option(
          "--overlap", overlap,
          "What an OVERLAP_F_B costs: the sum of its parts as one block (the default), the max of them, or "
          "serial: the parts one after the other")
      ->check(CLI::IsMember({"sum", "max", "serial"}));
  auto* costs = command.add_option("--costs", file, "Read costs by stage and by link from this JSON file");
  for (CLI::Option* option : {f, i, w, comm}) {
    option->check(kTime)->capture_default_str();
    costs->excludes(option);
  }
}

Costs CostOptions::load(const Placement& placement) const {
  Costs costs;
  if (file.empty()) {
    costs = uniform_costs(placement, rank);
  } else {
    std::ifstream in(file, std::ios::binary);
    if (!in) throw ArgumentError("cannot open " + file);
    try {
      costs = parse_costs(in, placement);
    } catch (const ParseError& error) {
      throw ParseError(file + ": " + error.what());
    }
  }
  if (overlap == "sum") costs.overlap = OverlapCost::Sum;
  if (overlap == "max") costs.overlap = OverlapCost::Max;
  if (overlap == "serial") costs.overlap = OverlapCost::Serial;
  return costs;
}

void TimelineOptions::add_to(CLI::App& command) {
  command.add_option("--columns", columns, "Width of the timeline in characters; 0: as wide as its text")
      ->check(CLI::Range(0, 4000))
      ->capture_default_str();
  command.add_option("--color", color, "Colours of the timeline")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->capture_default_str();
}

TerminalOptions TimelineOptions::load(bool to_file) const {
  const bool colored = color == "auto" ? !to_file && isatty(STDOUT_FILENO) == 1 && !std::getenv("NO_COLOR")
                                       : color == "always";
  return {.columns = columns, .color = colored};
}

void add_lower_options(CLI::App& command, LowerOptions& options) {
  command.add_flag("--defer-recv", options.defer_receives,
                   "Receive as late as possible without risking a deadlock");
  command
      .add_option("--max-active-stages", options.max_active_stages,
                  "Stages of a rank that may be unsharded at once")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_flag("--merge-backward", options.merge_backward,
                   "Turn an I followed by its W into one full backward B");
}

Drawing simulated(const Schedule& schedule, const CostOptions& costs, const std::string& name) {
  Drawing drawing;
  drawing.name = name;
  const auto count = [](std::int64_t number, const char* one, const char* many) {
    return std::to_string(number) + " " + (number == 1 ? one : many);
  };
  drawing.label = count(schedule.rank_count(), "rank", "ranks") + ", " +
                  count(schedule.microbatches, "microbatch", "microbatches") + ", " +
                  count(schedule.stage_count(), "stage", "stages");
  drawing.costs = costs.load(schedule.placement);
  drawing.timeline = simulate(schedule, drawing.costs);
  return drawing;
}

}  // namespace pipewright::cli
