#include <iomanip>
#include <iostream>

#include "commands.h"
#include "pipewright/schedule/generate.h"

namespace pipewright::cli {
namespace {

std::string stages_text(const ScheduleInfo& info) {
  if (info.min_stages_per_rank == info.max_stages_per_rank) return std::to_string(info.min_stages_per_rank);
  return "any (" + std::to_string(info.default_stages_per_rank) + ")";
}

void run() {
  std::cout << std::left << std::setw(23) << "name" << std::setw(16) << "stages a rank" << std::setw(11)
            << "placement" << "what it is\n";
  for (const ScheduleInfo& info : known_schedules()) {
    std::cout << std::left << std::setw(23) << info.name << std::setw(16) << stages_text(info)
              << std::setw(11) << info.placement << info.summary << '\n';
  }
}

}  // namespace

void add_list(CLI::App& app) {
  app.add_subcommand("list", "List the schedules that can be generated")->callback(run);
}

}  // namespace pipewright::cli
