#pragma once

#include <cstdint>
#include <functional>

#include "train/trainer.h"

namespace pipewright::cli {

/// Called after every step, tells about it on standard output.
using Progress = std::function<void(const StepRecord&)>;

/// A line of JSON a step.
Progress json_progress();

/// A line redrawn in place.
Progress bar_progress(int steps, const Workload& work);

/// About twenty lines in all.
Progress line_progress(int steps, const Workload& work);

}  // namespace pipewright::cli
