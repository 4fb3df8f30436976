#include "train/report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iomanip>
#include <iostream>
#include <limits>
#include <sstream>
#include <thread>

#include "files.h"
#include "pipewright/runtime/measured.h"
#include "pipewright/schedule/simulate.h"
#include "torch/bytes_text.h"

namespace pipewright::cli {
namespace {

constexpr std::size_t kSparkWidth = 32;

Timeline median_of(std::vector<Timeline> timelines, const Costs& costs) {
  const auto middle = timelines.begin() + static_cast<std::ptrdiff_t>(timelines.size() / 2);
  std::ranges::nth_element(timelines, middle, {},
                           [&](const Timeline& timeline) { return measure(timeline, costs).makespan; });
  return std::move(*middle);
}

}  // namespace

Comparison::Comparison(const std::string& name, const Schedule& plan, std::vector<Timeline> recent) {
  const Costs costs = measured_costs(recent);
  measured = {.name = name,
              .label = "a step of median length, in ms and MiB",
              .source = "measured",
              .timeline = {},
              .costs = costs};
  predicted = {.name = name,
               .label = "simulated with its costs, in ms and MiB",
               .source = "predicted",
               .timeline = {},
               .costs = costs};
  predicted.timeline = simulate(plan, costs);
  measured.timeline = median_of(std::move(recent), costs);
}

std::int64_t activations(const Drawing& drawing) {
  constexpr double kMebibyte = 1 << 20;
  return std::llround(kMebibyte * measure(drawing.timeline, drawing.costs).peak_activation());
}

void print_comparison(const Comparison& comparison, const Trainer& trainer) {
  std::cout << std::fixed << std::setprecision(1) << "             step  bubble  activations\n";
  for (const Drawing* drawing : {&comparison.predicted, &comparison.measured}) {
    const Metrics metrics = measure(drawing->timeline, drawing->costs);
    std::cout << std::left << std::setw(9) << drawing->source << std::right << std::setw(8)
              << metrics.makespan << " ms" << std::setw(6) << 100 * metrics.bubble_rate_makespan << " %"
              << std::setw(13) << bytes_text(activations(*drawing)) << '\n';
  }
  const auto ranks = comparison.measured.timeline.ranks.size();
  const auto cores = std::size_t{std::thread::hardware_concurrency()};
  if (trainer.shares_device()) {
    std::cout << "The prediction gives every rank a device; here several share one.\n";
  } else if (!trainer.on_cuda() && ranks > cores && cores > 0) {
    std::cout << "The prediction gives every rank a core; here " << ranks << " ranks share " << cores
              << ".\n";
  }
  std::cout << std::flush;
}

void print_memory(const PeakMemory& peak) {
  std::cout << "peak memory " << bytes_text(peak.of_tensors_or_process())
            << (peak.device > 0 ? " on the device\n" : " resident\n") << std::flush;
}

void write_files(const Comparison& comparison, const TrainOptions& options) {
  const Drawing& measured = comparison.measured;
  if (!options.timeline.empty()) {
    const std::array drawings = {measured, comparison.predicted};
    write_output(options.timeline, render_html("Pipewright: " + measured.name + ", measured", drawings));
  }
  if (!options.costs.empty()) write_output(options.costs, to_json(measured.costs));
  if (!options.trace.empty()) write_output(options.trace, render_trace(measured));
}

void tell_not_captured(const TrainOptions& options, const Trainer& trainer) {
  const std::string reason = trainer.not_captured_for();
  if (reason.empty()) return;
  std::cerr << "pipewright: " << options.source.title() << ": the steps were no CUDA graphs: " << reason
            << '\n';
}

std::string loss_text(const std::vector<double>& losses) {
  constexpr std::array kBars = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  double least = std::numeric_limits<double>::infinity();
  double most = -least;
  for (const double loss : losses) {
    if (!std::isfinite(loss)) continue;
    least = std::min(least, loss);
    most = std::max(most, loss);
  }
  std::ostringstream out;
  out << std::fixed << std::setprecision(3) << "loss " << losses.front() << ' ';
  const std::size_t width = std::min(losses.size(), kSparkWidth);
  for (std::size_t i = 0; i < width; ++i) {
    const double loss = losses[i * losses.size() / width];
    const double height = std::isfinite(loss) ? (loss - least) / std::max(most - least, 1e-9) : 1;
    out << kBars[static_cast<std::size_t>(std::lround(height * (kBars.size() - 1)))];
  }
  out << ' ' << losses.back();
  return out.str();
}

}  // namespace pipewright::cli
