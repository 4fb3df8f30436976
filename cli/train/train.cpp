#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <iostream>
#include <string>

#include "pipewright/base/error.h"
#include "pipewright/runtime/memory.h"
#include "pipewright/runtime/world.h"
#include "torch/command.h"
#include "torch/join_world.h"
#include "train/command.h"
#include "train/progress.h"
#include "train/record_on_signal.h"
#include "train/report.h"
#include "train/train_options.h"
#include "train/trainer.h"

namespace pipewright::cli {
namespace {

/// `quiet`: another process tells.
Progress make_progress(const TrainOptions& options, bool quiet, const Workload& work) {
  if (quiet) return [](const StepRecord&) {};
  if (options.json) return json_progress();
  if (isatty(STDOUT_FILENO) == 1) return bar_progress(options.steps, work);
  return line_progress(options.steps, work);
}

void announce(const TrainOptions& options, const Trainer& trainer) {
  const Schedule& plan = trainer.plan();
  std::cout << options.source.title() << ": ranks " << plan.rank_count() << ", microbatches "
            << plan.microbatches << ", stages " << plan.stage_count();
  if (options.data_parallel > 1) {
    std::cout << (options.sharded ? ", sharded replicas " : ", replicas ") << options.data_parallel;
  }
  std::cout << "; " << trainer.parameter_count() << " parameters, " << trainer.workload().items_per_step()
            << ' ' << trainer.workload().item() << " a step\n";
}

volatile std::sig_atomic_t told_to_end = 0;

/// SIGTERM ends the training after the step that is under way.
void end_on_sigterm() {
  struct sigaction action{};
  action.sa_handler = [](int) { told_to_end = 1; };
  sigaction(SIGTERM, &action, nullptr);
}

/// Whether some process was told to: then all end after the same step.
bool shall_end(World* world) {
  const std::string own = told_to_end != 0 ? "yes" : "";
  if (!world) return !own.empty();
  return std::ranges::any_of(world->all_gather(own), [](const std::string& each) { return !each.empty(); });
}

/// All steps, or until it is told to end; the losses.
std::vector<double> train_all(const TrainOptions& options, World* world, Trainer& trainer) {
  const bool quiet = world && world->rank() > 0;
  const Progress show = make_progress(options, quiet, trainer.workload());
  const bool saves = !options.checkpoint.empty();
  if (saves) end_on_sigterm();
  std::vector<double> losses;
  for (bool end = false; trainer.done() < options.steps && !end;) {
    const StepRecord record = trainer.step();
    losses.push_back(record.loss);
    show(record);
    if (!record.skipped_for.empty() && !quiet) {
      std::cerr << "pipewright: step " << record.step << " is skipped: " << record.skipped_for << '\n';
    }
    if (!saves) continue;
    end = shall_end(world);
    const bool due = options.every > 0 && record.step % options.every == 0;
    if (end || due || record.step == options.steps) trainer.save();
  }
  return losses;
}

void run(const TrainOptions& options) {
  options.check();
  keep_freed_memory();
  const std::shared_ptr<World> world = join_world();
  const bool quiet = world && world->rank() > 0;
  Trainer trainer(options, world);
  const RecordOnSignal on_signal([&trainer] {
    const std::string path = trainer.write_flight_record();
    std::cerr << (path.empty() ? "pipewright: cannot write a flight record\n"
                               : "pipewright: flight record in " + path + "\n");
  });
  if (!options.json && !quiet) announce(options, trainer);
  if (options.resume && trainer.resume() && !options.json && !quiet) {
    std::cout << "going on after step " << trainer.done() << '\n';
  }
  const std::vector<double> losses = train_all(options, world.get(), trainer);
  if (!options.save.empty()) {
    trainer.write_model(options.save);
    if (!options.json && !quiet) std::cerr << "wrote " << options.save << '\n';
  }
  if (quiet || losses.empty()) return;
  tell_not_captured(options, trainer);
  if (!options.json) {
    std::cout << loss_text(losses) << '\n';
    if (trainer.skipped() > 0) std::cout << trainer.skipped() << " steps skipped\n";
    print_memory(trainer.peak_memory());
  }
  if (trainer.recent().empty()) return;
  const Comparison comparison(options.source.title(), trainer.plan(), trainer.recent());
  if (!options.json) print_comparison(comparison, trainer);
  write_files(comparison, options);
}

}  // namespace

void add_train_command(CLI::App& app) {
  auto* command = add_command(
      app, "train", "Train an exported model, or a small language model of characters, by a schedule");
  const auto options = std::make_shared<TrainOptions>();
  options->add_to(*command);
  command->callback([options] { with_short_errors([&] { run(*options); }); });
}

}  // namespace pipewright::cli
