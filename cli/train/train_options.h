#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "gpt/data.h"
#include "gpt/gpt.h"
#include "model/model_options.h"
#include "options.h"
#include "pipewright/runtime/pipeline.h"
#include "torch/devices.h"

namespace pipewright::cli {

/// What `pipewright train` is told.
struct TrainOptions {
  SourceOptions source;
  int steps = 0;
  gpt::Config model = {.vocab = 0};
  /// Rows of one microbatch.
  std::optional<std::int64_t> batch;
  ModelOptions exported;
  std::string data;
  std::string loss = "cross_entropy";
  std::string save;
  std::string text;
  std::string optimizer = "adamw";
  std::optional<double> lr;
  std::optional<double> clip;
  int threads_per_rank = 0;
  DeviceOptions device;
  bool cuda_graph = false;
  int data_parallel = 1;
  bool sharded = false;
  bool json = false;
  std::string timeline;
  std::string costs;
  std::string trace;
  std::string checkpoint;
  int every = 0;
  int keep = 0;
  bool resume = false;
  std::string non_finite = "stop";
  /// Seconds.
  double timeout = 600;
  std::string flight_record = "pipewright-flight";

  void add_to(CLI::App& app);
  /// Those of `pipewright bench`, which trains, too: without the schedule's name.
  void add_to_bench(CLI::App& app);
  /// Throws ArgumentError for numbers that do not fit.
  void check() const;
  /// A schedule that has backwards.
  Schedule load_schedule() const;
  gpt::Characters load_text() const;
  /// Sequences of characters in one microbatch.
  std::int64_t rows() const;
  double learning_rate() const;
  NonFinite when_non_finite() const;
};

}  // namespace pipewright::cli
