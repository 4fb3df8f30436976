#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "commands.h"
#include "files.h"
#include "options.h"
#include "pipewright/schedule/render.h"

namespace pipewright::cli {
namespace {

using nlohmann::json;

struct Options {
  std::vector<std::string> names;
  SizeOptions sizes;
  CostOptions costs;
  std::string format = "table";
  std::string output;
};

std::string table(const std::vector<Drawing>& drawings) {
  std::ostringstream out;
  out << std::left << std::setw(24) << "schedule" << std::right << std::setw(7) << "stages" << std::setw(10)
      << "makespan" << std::setw(10) << "ideal" << std::setw(11) << "bubble %" << std::setw(12) << "by span %"
      << std::setw(17) << "peak activation" << '\n';
  for (const Drawing& drawing : drawings) {
    const Metrics metrics = measure(drawing.timeline, drawing.costs);
    out << std::left << std::setw(24) << drawing.name << std::right << std::setw(7)
        << drawing.timeline.placement.size() << std::setw(10) << metrics.makespan << std::setw(10)
        << metrics.ideal << std::fixed << std::setprecision(2) << std::setw(11)
        << 100 * metrics.bubble_rate_makespan << std::setw(12) << 100 * metrics.bubble_rate_span
        << std::defaultfloat << std::setprecision(6) << std::setw(17) << metrics.peak_activation() << '\n';
  }
  return out.str();
}

json to_json(const std::vector<Drawing>& drawings) {
  json rows = json::array();
  for (const Drawing& drawing : drawings) {
    const Metrics metrics = measure(drawing.timeline, drawing.costs);
    rows.push_back({{"name", drawing.name},
                    {"stages", drawing.timeline.placement.size()},
                    {"makespan", metrics.makespan},
                    {"ideal", metrics.ideal},
                    {"bubble_rate_makespan", metrics.bubble_rate_makespan},
                    {"bubble_rate_span", metrics.bubble_rate_span},
                    {"longest_span", metrics.longest_span()},
                    {"peak_activation", metrics.peak_activation()}});
  }
  return rows;
}

void run(const Options& options) {
  std::vector<Drawing> drawings;
  for (const std::string& name : options.names) {
    const Schedule schedule = make_schedule(options.sizes.among_others(name).spec(name));
    drawings.push_back(simulated(schedule, options.costs, std::string(find_schedule(name).name)));
  }
  if (options.format == "json") return write_output(options.output, to_json(drawings).dump(2) + "\n");
  if (options.format == "html") {
    return write_output(options.output, render_html("Pipewright: schedules compared", drawings));
  }
  write_output(options.output, table(drawings));
}

}  // namespace

void add_compare(CLI::App& app) {
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("compare", "Simulate several schedules and set them side by side");
  command->add_option("names", options->names, "Names of schedules ('pipewright list')")->required();
  options->sizes.add_to(*command, true);
  options->costs.add_to(*command);
  command->add_option("--format", options->format, "table, json, or html: one page with all of them drawn")
      ->check(CLI::IsMember({"table", "json", "html"}))
      ->capture_default_str();
  command->add_option("-o,--output", options->output, "Write to this file instead of standard output");
  command->callback([options] { run(*options); });
}

}  // namespace pipewright::cli
