#include <c10/util/Exception.h>
#include <unistd.h>

#include <iostream>

#include "commands.h"
#include "pipewright/base/error.h"
#include "pipewright/runtime/memory.h"
#include "pipewright/runtime/world.h"
#include "train/progress.h"
#include "train/report.h"
#include "train/train_options.h"
#include "train/trainer.h"

namespace pipewright::cli {
namespace {

/// `quiet`: another process tells.
Progress make_progress(const TrainOptions& options, bool quiet, std::int64_t tokens_per_step) {
  if (quiet) return [](const StepRecord&) {};
  if (options.json) return json_progress();
  if (isatty(STDOUT_FILENO) == 1) return bar_progress(options.steps, tokens_per_step);
  return line_progress(options.steps, tokens_per_step);
}

void announce(const TrainOptions& options, const Trainer& trainer) {
  const Schedule& plan = trainer.plan();
  std::cout << options.source.title() << ": ranks " << plan.rank_count() << ", microbatches "
            << plan.microbatches << ", stages " << plan.stage_count();
  if (options.data_parallel > 1) {
    std::cout << (options.sharded ? ", sharded replicas " : ", replicas ") << options.data_parallel;
  }
  std::cout << "; " << trainer.parameter_count() << " parameters, " << trainer.tokens_per_step()
            << " tokens a step\n";
}

/// All steps; the losses.
std::vector<double> train_all(const TrainOptions& options, bool quiet, Trainer& trainer) {
  const Progress show = make_progress(options, quiet, trainer.tokens_per_step());
  std::vector<double> losses;
  for (int step = 0; step < options.steps; ++step) {
    const StepRecord record = trainer.step();
    losses.push_back(record.loss);
    show(record);
  }
  return losses;
}

void run(const TrainOptions& options) {
  options.check();
  keep_freed_memory();
  std::shared_ptr<World> world;
  if (const auto told = world_from_environment()) world = std::make_shared<World>(*told);
  const bool quiet = world && world->rank() > 0;
  Trainer trainer(options, world);
  if (!options.json && !quiet) announce(options, trainer);
  const std::vector<double> losses = train_all(options, quiet, trainer);
  if (quiet) return;
  const Comparison comparison(options.source.title(), trainer.plan(), trainer.recent());
  if (!options.json) {
    std::cout << loss_text(losses) << '\n';
    print_comparison(comparison);
  }
  write_files(comparison, options);
}

}  // namespace
}  // namespace pipewright::cli

int main(int argc, char** argv) {
  using namespace pipewright::cli;
  CLI::App app("Train a small language model of characters by a schedule, on ranks in threads",
               "pipewright train");
  app.set_version_flag("--version", PIPEWRIGHT_VERSION);
  app.footer("Exit codes: 0 fine, 1 the input is judged bad, 2 wrong usage.");
  TrainOptions options;
  options.add_to(app);
  app.callback([&options] {
    try {
      run(options);
    } catch (const c10::Error& error) {
      // Without the list of stack frames that what() brings.
      throw pipewright::Error(error.what_without_backtrace());
    }
  });
  return run_app(app, argc, argv);
}
