#include "pipewright/schedule/lower.h"

#include "commands.h"
#include "files.h"
#include "options.h"
#include "pipewright/schedule/csv.h"

namespace pipewright::cli {

void add_lower(CLI::App& app) {
  struct Options {
    std::string input;
    SkipOptions skips;
    LowerOptions lower;
    std::string output;
  };
  auto options = std::make_shared<Options>();
  auto* command =
      app.add_subcommand("lower", "Turn a compute-only CSV into a plan with messages (compute_comms)");
  command->add_option("file", options->input, "The CSV file; - for standard input")->required();
  options->skips.add_to(*command);
  add_lower_options(*command, options->lower);
  command->add_option("-o,--output", options->output, "Write to this file instead of standard output");
  command->callback([options] {
    Schedule schedule = read_schedule(options->input);
    options->skips.apply(schedule);
    const Schedule plan = lower(std::move(schedule), options->lower);
    write_output(options->output, [&](std::ostream& out) { write_csv(plan, out); });
  });
}

}  // namespace pipewright::cli
