#include <algorithm>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/base/error.h"
#include "pipewright/runtime/memory.h"
#include "pipewright/schedule/generate.h"
#include "pipewright/schedule/simulate.h"
#include "torch/bytes_text.h"
#include "torch/command.h"
#include "torch/join_world.h"
#include "train/command.h"
#include "train/report.h"
#include "train/train_options.h"
#include "train/trainer.h"

namespace pipewright::cli {
namespace {

/// Not timed: they set everything up, and where steps become a CUDA graph, record it.
constexpr int kWarmUp = 3;

struct BenchOptions {
  TrainOptions training;
  std::vector<std::string> schedules;
};

/// How a schedule did.
struct Row {
  std::string name;
  Stage stages;
  double seconds;  // of a step, the median
  double tokens_per_second;
  std::optional<double> bubble;
  double predicted_bubble;
  int peak_live;
  std::optional<std::int64_t> activations;  // predicted
  PeakMemory memory;
};

std::vector<std::string> all_names() {
  std::vector<std::string> names;
  for (const ScheduleInfo& info : known_schedules()) names.emplace_back(info.name);
  return names;
}

/// Of the schedules that are named; else of all that train and fit the sizes.
std::vector<TrainOptions> trainings(const BenchOptions& options) {
  const bool all = options.schedules.empty();
  std::vector<TrainOptions> each;
  std::string refusal;
  for (const std::string& name : all ? all_names() : options.schedules) {
    TrainOptions one = options.training;
    one.source.name = name;
    one.source.sizes = one.source.sizes.among_others(name);
    try {
      one.load_schedule();
      each.push_back(std::move(one));
    } catch (const ArgumentError& error) {
      if (!all) throw;
      refusal = error.what();
    }
  }
  if (each.empty()) throw ArgumentError(refusal);
  return each;
}

double median(std::vector<double> numbers) {
  const auto middle = numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2);
  std::ranges::nth_element(numbers, middle);
  return *middle;
}

/// By the costs that were measured, where they were; else as if all stages were alike.
double predicted_bubble(const Schedule& plan, const std::optional<Comparison>& comparison) {
  if (comparison) {
    return measure(comparison->predicted.timeline, comparison->predicted.costs).bubble_rate_makespan;
  }
  const Costs costs = uniform_costs(plan.placement);
  return measure(simulate(plan, costs), costs).bubble_rate_makespan;
}

Row train(const TrainOptions& options, const std::shared_ptr<World>& world) {
  Trainer trainer(options, world);
  std::vector<double> seconds;
  int peak_live = 0;
  for (int step = 0; step < kWarmUp + options.steps; ++step) {
    const StepRecord record = trainer.step();
    if (step >= kWarmUp) seconds.push_back(record.seconds);
    peak_live = std::max(peak_live, record.peak_live);
  }
  std::optional<Comparison> comparison;
  const std::string name = options.source.title();
  if (!trainer.recent().empty()) comparison.emplace(name, trainer.plan(), trainer.recent());
  Row row{.name = name,
          .stages = trainer.plan().stage_count(),
          .seconds = median(seconds),
          .tokens_per_second = static_cast<double>(trainer.workload().items_per_step()) / median(seconds),
          .bubble = {},
          .predicted_bubble = predicted_bubble(trainer.plan(), comparison),
          .peak_live = peak_live,
          .activations = {},
          .memory = trainer.peak_memory()};
  if (comparison) {
    row.bubble = measure(comparison->measured.timeline, comparison->measured.costs).bubble_rate_makespan;
    row.activations = activations(comparison->predicted);
  }
  if (!world || world->rank() == 0) tell_not_captured(options, trainer);
  return row;
}

void print_head() {
  std::cout << std::left << std::setw(24) << "schedule" << std::right << std::setw(7) << "stages"
            << std::setw(11) << "ms a step" << std::setw(12) << "tokens/s" << std::setw(11) << "bubble %"
            << std::setw(13) << "predicted %" << std::setw(11) << "peak live" << std::setw(13)
            << "activations" << std::setw(13) << "peak memory" << '\n';
}

void print(const Row& row) {
  std::cout << std::left << std::setw(24) << row.name << std::right << std::fixed << std::setw(7)
            << row.stages << std::setprecision(2) << std::setw(11) << 1000 * row.seconds
            << std::setprecision(0) << std::setw(12) << row.tokens_per_second << std::setprecision(2)
            << std::setw(11);
  if (row.bubble) {
    std::cout << 100 * *row.bubble;
  } else {
    std::cout << '-';
  }
  std::cout << std::setw(13) << 100 * row.predicted_bubble << std::setw(11) << row.peak_live << std::setw(13)
            << (row.activations ? bytes_text(*row.activations) : "-") << std::setw(13)
            << bytes_text(row.memory.of_tensors_or_process()) << '\n'
            << std::flush;
  if (!std::cout) throw Error("cannot write to standard output");
}

nlohmann::ordered_json to_json(const Row& row) {
  nlohmann::ordered_json object = {{"name", row.name},
                                   {"stages", row.stages},
                                   {"seconds", row.seconds},
                                   {"tokens_per_second", row.tokens_per_second},
                                   {"bubble", nullptr},
                                   {"predicted_bubble", row.predicted_bubble},
                                   {"peak_live", row.peak_live},
                                   {"activations", nullptr},
                                   {"peak_memory", row.memory.resident},
                                   {"peak_device_memory", row.memory.device}};
  if (row.bubble) object["bubble"] = *row.bubble;
  if (row.activations) object["activations"] = *row.activations;
  return object;
}

void run(const BenchOptions& options) {
  options.training.check();
  const std::vector<TrainOptions> all = trainings(options);
  keep_freed_memory();
  const std::shared_ptr<World> world = join_world();
  const bool quiet = world && world->rank() > 0;
  const bool json = options.training.json;
  if (!json && !quiet) print_head();
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const TrainOptions& each : all) {
    const Row row = train(each, world);
    rows.push_back(to_json(row));
    if (!json && !quiet) print(row);
  }
  if (json && !quiet) std::cout << rows.dump(2) << '\n';
}

}  // namespace

void add_bench_command(CLI::App& app) {
  auto* command = add_command(
      app, "bench", "Train a small language model by several schedules and set their times side by side");
  const auto options = std::make_shared<BenchOptions>();
  options->training.steps = 10;
  // What becomes of the model does not matter, and looking for such numbers takes time.
  options->training.non_finite = "continue";
  command
      ->add_option("--schedule", options->schedules,
                   "Names, a,b,c, in any case; may be repeated [all that train and fit the sizes]")
      ->delimiter(',');
  options->training.add_to_bench(*command);
  command->callback([options] { with_short_errors([&] { run(*options); }); });
}

}  // namespace pipewright::cli
