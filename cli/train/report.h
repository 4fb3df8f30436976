#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/trainer.h"

namespace pipewright::cli {

/// How a plan ran, beside how the simulator says that it runs with the same costs.
struct Comparison {
  Drawing measured;
  Drawing predicted;

  /// `recent`: timelines of the same plan, at least one; the one of median length stands for them.
  Comparison(const std::string& name, const Schedule& plan, std::vector<Timeline> recent);
};

/// The most that a rank holds at once, in bytes, by the memory that was measured for a microbatch.
std::int64_t activations(const Drawing& drawing);

/// Predicted and measured time, bubble and activations of a step, for people.
void print_comparison(const Comparison& comparison, const Trainer& trainer);

/// The most memory, for people.
void print_memory(const PeakMemory& peak);

/// Writes the files that the options name.
void write_files(const Comparison& comparison, const TrainOptions& options);

/// Says on standard error why steps were not CUDA graphs, where they should have been.
void tell_not_captured(const TrainOptions& options, const Trainer& trainer);

/// Where the loss began and ended, and the way there as a row of little bars.
std::string loss_text(const std::vector<double>& losses);

}  // namespace pipewright::cli
