#include "pipewright/schedule/validate.h"

#include <charconv>
#include <iostream>
#include <sstream>

#include "commands.h"
#include "files.h"
#include "pipewright/base/error.h"
#include "pipewright/schedule/deadlock.h"

namespace pipewright::cli {
namespace {

template <class Number>
bool take_number(std::string_view& text, Number& value) {
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

bool take(std::string_view& text, char expected) {
  if (text.empty() || text.front() != expected) return false;
  text.remove_prefix(1);
  return true;
}

/// "4" for every channel, "0:1=4" for the one from rank 0 to rank 1.
void parse_capacity(const std::string& argument, ChannelCapacity& capacity) {
  std::string_view text = argument;
  std::size_t messages = 0;
  if (take_number(text, messages) && text.empty()) {
    capacity.messages = messages;
    return;
  }
  text = argument;
  ChannelCapacity::Override channel{};
  if (take_number(text, channel.from) && take(text, ':') && take_number(text, channel.to) &&
      take(text, '=') && take_number(text, channel.messages) && text.empty()) {
    capacity.overrides.push_back(channel);
    return;
  }
  throw ArgumentError("--capacity takes a number, or FROM:TO=NUMBER, not '" + argument + "'");
}

void run(const std::string& input, bool lowered, const std::vector<std::string>& capacities) {
  ChannelCapacity capacity;
  for (const std::string& argument : capacities) parse_capacity(argument, capacity);
  const Schedule schedule = read_schedule(input);
  const auto found = validate(schedule, lowered ? Format::Lowered : Format::ComputeOnly);
  for (const Diagnostic& diagnostic : found) std::cout << to_text(diagnostic) << '\n';
  if (!found.empty()) throw Judged{};
  if (lowered) {
    const DeadlockVerdict verdict = prove_deadlock_free(schedule, capacity);
    if (!verdict.free()) {
      std::istringstream lines(to_text(verdict));
      for (std::string line; std::getline(lines, line);) std::cout << "[deadlock] " << line << '\n';
      throw Judged{};
    }
  }
  std::cout << "valid\n";
}

}  // namespace

void add_validate(CLI::App& app) {
  struct Options {
    std::string input;
    bool lowered = false;
    std::vector<std::string> capacities;
  };
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand(
      "validate", "Check a schedule: exit 0 and 'valid', or exit 1 and a diagnostic a line");
  command->add_option("file", options->input, "The CSV file; - for standard input")->required();
  auto* lowered = command->add_flag("--lowered", options->lowered,
                                    "It is lowered (compute_comms): check its messages too, and prove "
                                    "that it cannot deadlock");
  command
      ->add_option("--capacity", options->capacities,
                   "Messages that a channel between two ranks holds before a send blocks: N for all, "
                   "FROM:TO=N for one [0]")
      ->needs(lowered);
  command->callback([options] { run(options->input, options->lowered, options->capacities); });
}

}  // namespace pipewright::cli
