#include "commands.h"
#include "files.h"
#include "options.h"
#include "pipewright/schedule/render.h"

namespace pipewright::cli {
namespace {

struct Options {
  SourceOptions source;
  CostOptions costs;
  std::string format = "timeline";
  TimelineOptions timeline;
  std::string output;
};

std::string render(const Options& options) {
  const Schedule schedule = options.source.load();
  if (options.format == "grid") return render_grid(schedule);
  const Drawing drawing = simulated(schedule, options.costs, options.source.title());
  if (options.format == "svg") return render_svg(drawing);
  if (options.format == "html") return render_html("Pipewright: " + drawing.name, {&drawing, 1});
  if (options.format == "trace") return render_trace(drawing);
  return render_terminal(drawing, options.timeline.load(!options.output.empty()));
}

}  // namespace

void add_show(CLI::App& app) {
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("show", "Draw a schedule");
  options->source.add_to(*command);
  options->costs.add_to(*command);
  command
      ->add_option("--format", options->format,
                   "grid: the cells, a row a step; timeline: in the terminal; svg; html: a page to "
                   "zoom and hover in; trace: for Perfetto and chrome://tracing")
      ->check(CLI::IsMember({"grid", "timeline", "svg", "html", "trace"}))
      ->capture_default_str();
  options->timeline.add_to(*command);
  command->add_option("-o,--output", options->output, "Write to this file instead of standard output");
  command->callback([options] { write_output(options->output, render(*options)); });
}

}  // namespace pipewright::cli
