#include "train/train_options.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>

#include "pipewright/base/error.h"

namespace pipewright::cli {
namespace {

constexpr std::int64_t kSequences = 4;
constexpr double kAdamWRate = 3e-3;
constexpr double kSgdRate = 0.5;
constexpr double kShortestTimeout = 1e-3;
constexpr double kLongestTimeout = 1e6;

using AddedOptions = std::vector<CLI::Option*>;

void exclude(CLI::Option* option, const AddedOptions& others) {
  for (CLI::Option* other : others) option->excludes(other);
}

AddedOptions add_sizes(CLI::App& app, SizeOptions& sizes) {
  return {app.add_option("-p,--ranks", sizes.ranks, "Number of pipeline ranks, a thread each"),
          app.add_option("-m,--microbatches", sizes.microbatches, "Number of microbatches of a step"),
          app.add_option("-v,--stages-per-rank", sizes.stages_per_rank,
                         "Stages on each rank; each schedule has its own default ('pipewright list')")};
}

void add_schedule_options(CLI::App& app, SourceOptions& source) {
  auto* csv = app.add_option("--csv", source.csv,
                             "Train by this CSV file instead, compute-only or lowered; - for standard input");
  csv->excludes(
      app.add_option("--schedule", source.name, "A schedule's name, in any case ('pipewright list')"));
  exclude(csv, add_sizes(app, source.sizes));
}

/// Of the model that comes with the program.
AddedOptions add_model_sizes(CLI::App& app, gpt::Config& model) {
  return {app.add_option("--layers", model.layers, "Blocks of the language model, spread over the stages")
              ->capture_default_str(),
          app.add_option("--width", model.width, "Width of its activations")->capture_default_str(),
          app.add_option("--heads", model.heads, "Heads of its attention; they divide the width")
              ->capture_default_str(),
          app.add_option("--context", model.context, "Characters of a sequence")->capture_default_str()};
}

AddedOptions add_text_options(CLI::App& app, TrainOptions& options) {
  return {app.add_option(
                 "--vocab", options.model.vocab,
                 "Size of the vocabulary; 0: the different characters of the text; fewer: the rarest are one")
              ->capture_default_str(),
          app.add_option("--text", options.text,
                         "Learn from this file instead of the text that comes with the program")};
}

/// Where it computes, and how.
void add_device_options(CLI::App& app, TrainOptions& options) {
  options.device.add_to(app);
  app.add_option_function<std::string>(
         "--dtype",
         [&model = options.model](const std::string& name) {
           model.dtype = name == "bf16" ? at::kBFloat16 : at::kFloat;
         },
         "Of the language model's parameters and activations")
      ->check(CLI::IsMember({"float32", "bf16"}))
      ->default_str("float32");
  app.add_flag("--cuda-graph", options.cuda_graph,
               "Record a step on a CUDA device once, and replay it; nothing is timed within such a step");
  app.add_option("--threads-per-rank", options.threads_per_rank,
                 "Threads of one operator; 0: the cores shared out among the ranks")
      ->capture_default_str();
}

void add_data_options(CLI::App& app, TrainOptions& options) {
  app.add_option("--data", options.data,
                 "The model's rows, .pt or .safetensors: inputs by name or position 0, 1, …, and 'target'");
  app.add_option(
         "--loss", options.loss,
         "Of the model's first output and the target; output: the model's own, named loss or the first")
      ->check(CLI::IsMember({"cross_entropy", "mse", "output"}))
      ->capture_default_str();
  app.add_option("--save", options.save,
                 "Write the trained parameters and buffers here, .pt or .safetensors, by their names in "
                 "Python, or the whole exported model, .pt2");
  app.add_option(
      "--batch", options.batch,
      "Rows of one microbatch [of the language model 4, of an exported one those it was exported with]");
  app.add_option("--seed", options.model.seed,
                 "Decides the data of every step, and the language model's first weights")
      ->capture_default_str();
}

void add_optimizer_options(CLI::App& app, TrainOptions& options) {
  app.add_option("--steps", options.steps, "Steps to train")->required();
  app.add_option("--optimizer", options.optimizer, "The optimizer")
      ->check(CLI::IsMember({"sgd", "adamw"}))
      ->capture_default_str();
  app.add_option("--lr", options.lr, "Its learning rate [0.003 for adamw, 0.5 for sgd]");
  app.add_option("--clip", options.clip, "Scale gradients down to this norm where it is larger");
  app.add_option("--non-finite", options.non_finite,
                 "When a loss or a gradient is nan or inf: stop, skip the step, or continue")
      ->check(CLI::IsMember({"stop", "skip", "continue"}))
      ->capture_default_str();
}

void add_parallel_options(CLI::App& app, TrainOptions& options) {
  app.add_option("--data-parallel", options.data_parallel,
                 "Replicas of the whole pipeline, each with microbatches of its own; gradients are summed")
      ->capture_default_str();
  app.add_flag("--sharded", options.sharded,
               "Each process keeps only its part of the parameters of a stage that others have, too");
}

void add_failure_options(CLI::App& app, TrainOptions& options) {
  app.add_option("--timeout", options.timeout,
                 "Seconds that an action waits for its data before the step fails")
      ->capture_default_str();
  app.add_option(
         "--flight-record", options.flight_record,
         "Where each process writes what it did last, for 'pipewright explain', when a step fails or SIGUSR1 "
         "comes; empty: nowhere")
      ->capture_default_str();
}

void add_output_options(CLI::App& app, TrainOptions& options) {
  app.add_flag("--json", options.json, "One line of JSON a step, and nothing else, on standard output");
  app.add_option("--timeline", options.timeline,
                 "Write a page with the measured timeline of a step beside the predicted one");
  app.add_option("--write-costs", options.costs,
                 "Write the measured costs in milliseconds, for 'pipewright simulate --costs'");
  app.add_option("--trace", options.trace, "Write the measured step for Perfetto and chrome://tracing");
}

void add_checkpoint_options(CLI::App& app, TrainOptions& options) {
  auto* directory = app.add_option("--checkpoint", options.checkpoint,
                                   "Save checkpoints in this directory: at the end, and when SIGTERM comes");
  app.add_option("--every", options.every, "Save one after every so many steps, too")->needs(directory);
  app.add_option("--keep", options.keep, "Keep only so many of the newest; 0: all")
      ->needs(directory)
      ->capture_default_str();
  app.add_flag("--resume", options.resume, "Go on from the newest one there, if there is one")
      ->needs(directory);
}

void check_device(const TrainOptions& options) {
  if (options.cuda_graph && !options.device.is_cuda()) {
    throw ArgumentError("--cuda-graph needs a CUDA device: --device cuda");
  }
  if (options.cuda_graph && !(options.timeline.empty() && options.costs.empty() && options.trace.empty())) {
    throw ArgumentError(
        "--cuda-graph leaves no times for --timeline, --write-costs and --trace: use them without it");
  }
  if (!options.exported.file.empty() && options.model.dtype != at::kFloat) {
    throw ArgumentError("--dtype is for the language model: " + options.exported.file +
                        " computes in the dtypes that it was exported with; export it in bfloat16");
  }
  options.device.check();
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw ArgumentError("cannot open " + path);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad() || text.empty()) throw ArgumentError("cannot read a text from " + path);
  return text;
}

}  // namespace

void TrainOptions::add_to(CLI::App& app) {
  add_schedule_options(app, source);
  add_optimizer_options(app, *this);
  add_device_options(app, *this);
  add_parallel_options(app, *this);
  CLI::Option* file = exported.add_to(app);
  add_data_options(app, *this);
  exclude(file, add_model_sizes(app, model));
  exclude(file, add_text_options(app, *this));
  add_checkpoint_options(app, *this);
  add_failure_options(app, *this);
  add_output_options(app, *this);
}

void TrainOptions::add_to_bench(CLI::App& app) {
  add_sizes(app, source.sizes);
  for (const char* needed : {"--ranks", "--microbatches"}) app.get_option(needed)->required();
  app.add_option("--steps", steps, "Steps to time, after some that are not")->capture_default_str();
  add_device_options(app, *this);
  add_model_sizes(app, model);
  app.add_option("--batch", batch, "Sequences of one microbatch [4]");
  app.add_flag("--json", json, "The same as JSON, all at once");
}

void TrainOptions::check() const {
  check_device(*this);
  if (steps < 1) throw ArgumentError("--steps must be at least 1");
  if (exported.file.empty() && (exported.says_where() || !data.empty() || !exported.weights.empty())) {
    throw ArgumentError(
        "--at, --after, --modules, --weights and --data need a model: pipewright train MODEL.pt2");
  }
  if (!exported.file.empty() && data.empty()) {
    throw ArgumentError("--data is missing: the file with the rows that " + exported.file + " learns from");
  }
  if (batch.value_or(1) < 1 || batch.value_or(1) > gpt::kMostOfAnything) {
    throw ArgumentError("--batch must be from 1 to " + std::to_string(gpt::kMostOfAnything));
  }
  if (model.vocab < 0) throw ArgumentError("--vocab must be at least 0");
  if (data_parallel < 1) throw ArgumentError("--data-parallel must be at least 1");
  if (!(timeout >= kShortestTimeout && timeout <= kLongestTimeout)) {
    throw ArgumentError("--timeout must be from 0.001 to 1000000 seconds");
  }
  if (every < 0) throw ArgumentError("--every must be at least 0");
  if (keep < 0) throw ArgumentError("--keep must be at least 0");
  if (threads_per_rank < 0) throw ArgumentError("--threads-per-rank must be at least 0");
  if (!(learning_rate() >= 0) || std::isinf(learning_rate())) {
    throw ArgumentError("--lr must be a number of at least 0");
  }
  if (clip && !(*clip > 0)) throw ArgumentError("--clip must be more than 0");
  gpt::Config sizes = model;
  sizes.vocab = std::max<std::int64_t>(sizes.vocab, 1);
  gpt::check(sizes);
}

Schedule TrainOptions::load_schedule() const {
  Schedule schedule = source.load();
  for (const auto& rank : schedule.ranks) {
    if (std::ranges::any_of(rank, [](Action action) { return gives_input_grad(action.kind); })) {
      return schedule;
    }
  }
  const std::string message = source.title() + " has no backward: it cannot train";
  if (source.csv.empty()) throw ArgumentError(message);
  throw InvalidSchedule(message);
}

gpt::Characters TrainOptions::load_text() const {
  return text.empty() ? gpt::Characters(gpt::sample_text(), model.vocab)
                      : gpt::Characters(read_text(text), model.vocab);
}

std::int64_t TrainOptions::rows() const { return batch.value_or(kSequences); }

NonFinite TrainOptions::when_non_finite() const {
  if (non_finite == "skip") return NonFinite::Skip;
  return non_finite == "stop" ? NonFinite::Stop : NonFinite::GoOn;
}

double TrainOptions::learning_rate() const { return lr.value_or(optimizer == "sgd" ? kSgdRate : kAdamWRate); }

}  // namespace pipewright::cli
