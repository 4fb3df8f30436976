#include "commands.h"
#include "files.h"
#include "options.h"
#include "pipewright/schedule/csv.h"

namespace pipewright::cli {

void add_generate(CLI::App& app) {
  struct Options {
    std::string name;
    SizeOptions sizes;
    SkipOptions skips;
    bool lowered = false;
    LowerOptions lower;
    std::string output;
  };
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("generate", "Generate a schedule as CSV: one row a rank");
  command->add_option("name", options->name, "The schedule's name, in any case ('pipewright list')")
      ->required();
  options->sizes.add_to(*command, true);
  auto* lowered =
      command->add_flag("--lowered", options->lowered, "Lower it: with messages and data-parallel actions");
  add_lower_options(*command, options->lower);
  options->skips.add_to(*command)->needs(lowered);
  for (const char* name : {"--defer-recv", "--max-active-stages", "--merge-backward"}) {
    command->get_option(name)->needs(lowered);
  }
  command->add_option("-o,--output", options->output, "Write to this file instead of standard output");
  command->callback([options] {
    Schedule schedule = make_schedule(options->sizes.spec(options->name));
    options->skips.apply(schedule);
    if (options->lowered) schedule = lower(std::move(schedule), options->lower);
    write_output(options->output, [&](std::ostream& out) { write_csv(schedule, out); });
  });
}

}  // namespace pipewright::cli
