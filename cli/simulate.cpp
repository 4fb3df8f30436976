#include "pipewright/schedule/simulate.h"

#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "files.h"
#include "options.h"

namespace pipewright::cli {
namespace {

using nlohmann::json;

json to_json(const Drawing& drawing) {
  const Metrics metrics = measure(drawing.timeline, drawing.costs);
  json result = {{"name", drawing.name},
                 {"makespan", metrics.makespan},
                 {"ideal", metrics.ideal},
                 {"bubble_rate_makespan", metrics.bubble_rate_makespan},
                 {"bubble_rate_span", metrics.bubble_rate_span}};
  for (const char* field :
       {"span", "busy", "idle", "peak_activation", "activation", "actions", "critical_path"}) {
    result[field] = json::array();
  }
  for (const RankMetrics& rank : metrics.ranks) {
    result["span"].push_back(rank.span);
    result["busy"].push_back(rank.busy);
    result["idle"].push_back(rank.idle);
    result["peak_activation"].push_back(rank.peak_activation);
  }
  for (std::size_t rank = 0; rank < drawing.timeline.ranks.size(); ++rank) {
    const auto& actions = drawing.timeline.ranks[rank];
    result["activation"].push_back(activation_curve(actions, drawing.costs));
    for (const TimedAction& timed : actions) {
      result["actions"].push_back(
          {{"rank", rank}, {"action", to_text(timed.action)}, {"start", timed.start}, {"end", timed.end}});
    }
  }
  for (const auto& [rank, position] : critical_path(drawing.timeline)) {
    const auto& timed = drawing.timeline.ranks[static_cast<std::size_t>(rank)][position];
    result["critical_path"].push_back({{"rank", rank}, {"action", to_text(timed.action)}});
  }
  return result;
}

void print_text(const Drawing& drawing, std::ostream& out) {
  const Metrics metrics = measure(drawing.timeline, drawing.costs);
  out << drawing.name << ": " << drawing.label << '\n'
      << "  makespan        " << metrics.makespan << '\n'
      << "  ideal           " << metrics.ideal << '\n'
      << "  bubble          " << 100 * metrics.bubble_rate_makespan << " % of the makespan\n"
      << "  bubble by span  " << 100 * metrics.bubble_rate_span << " % of the longest rank's span, "
      << metrics.longest_span() << '\n'
      << "  rank      span      busy      idle  peak activation\n";
  for (std::size_t rank = 0; rank < metrics.ranks.size(); ++rank) {
    const RankMetrics& row = metrics.ranks[rank];
    out << "  " << std::setw(4) << rank << std::setw(10) << row.span << std::setw(10) << row.busy
        << std::setw(10) << row.idle << std::setw(17) << row.peak_activation << '\n';
  }
  out << "  critical path:";
  constexpr std::size_t kShown = 12;
  const auto path = critical_path(drawing.timeline);
  for (std::size_t i = 0; i < std::min(kShown, path.size()); ++i) {
    out << ' '
        << to_text(drawing.timeline.ranks[static_cast<std::size_t>(path[i].rank)][path[i].position].action);
  }
  if (path.size() > kShown) out << " … (" << path.size() << " actions; all with --json)";
  out << '\n';
}

}  // namespace

void add_simulate(CLI::App& app) {
  struct Options {
    SourceOptions source;
    CostOptions costs;
    bool json = false;
    std::string output;
  };
  auto options = std::make_shared<Options>();
  auto* command =
      app.add_subcommand("simulate", "Tell how long a schedule takes, where it idles, what memory it needs");
  options->source.add_to(*command);
  options->costs.add_to(*command);
  command->add_flag("--json", options->json, "Everything, with start and end of every action, as JSON");
  command->add_option("-o,--output", options->output, "Write to this file instead of standard output");
  command->callback([options] {
    const Drawing drawing = simulated(options->source.load(), options->costs, options->source.title());
    write_output(options->output, [&](std::ostream& out) {
      if (options->json) {
        out << to_json(drawing).dump() << '\n';
      } else {
        print_text(drawing, out);
      }
    });
  });
}

}  // namespace pipewright::cli
