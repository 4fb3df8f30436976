#include "train/trainer.h"

#include <ATen/Parallel.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <utility>

#include "pipewright/base/error.h"
#include "pipewright/frontend/tensor_file.h"

namespace pipewright::cli {
namespace {

constexpr std::size_t kRecentSteps = 20;

/// VmHWM and not getrusage: that one also counts what the process was before it became this program.
std::int64_t peak_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::int64_t kilobytes = 0;
    if (word == "VmHWM:" && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const TrainOptions& options,
                                                        std::vector<at::Tensor> parameters) {
  const double rate = options.learning_rate();
  if (options.optimizer == "sgd") {
    return std::make_unique<torch::optim::SGD>(std::move(parameters), torch::optim::SGDOptions(rate));
  }
  return std::make_unique<torch::optim::AdamW>(std::move(parameters), torch::optim::AdamWOptions(rate));
}

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
}

std::int64_t count_parameters(const Pipeline& pipeline, World* world) {
  std::int64_t own = 0;
  for (const LocalParameter& each : pipeline.local_parameters()) {
    if (each.counts) own += each.tensor.numel();
  }
  if (!world) return own;
  std::int64_t all = 0;
  for (const std::string& count : world->all_gather(std::to_string(own))) all += std::stoll(count);
  return all;
}

}  // namespace

Trainer::Trainer(const TrainOptions& options, const std::shared_ptr<World>& world)
    : options_(options), world_(world) {
  const Schedule schedule = options_.load_schedule();
  workload_ = options_.exported.file.empty() ? make_character_workload(options_, schedule)
                                             : make_model_workload(options_, schedule, world.get());
  PipelineOptions wanted{.timeout = milliseconds(options_.timeout),
                         .threads_per_rank = options_.threads_per_rank,
                         .world = world,
                         .data_parallel = options_.data_parallel,
                         .sharded = options_.sharded,
                         .flight_record = options_.flight_record};
  workload_->configure(wanted);
  pipeline_ = std::make_unique<Pipeline>(schedule, workload_->stages(), std::move(wanted));
  parameter_count_ = count_parameters(*pipeline_, world.get());
  optimizer_ = make_optimizer(options_, pipeline_->parameters());
  if (!options_.checkpoint.empty()) {
    checkpoints_ = std::make_unique<Checkpoints>(
        CheckpointOptions{.directory = options_.checkpoint,
                          .keep = options_.keep,
                          .world = world,
                          .other_names = [this](const auto& name) { return workload_->other_names(name); }});
  }
  // On this thread only the optimizer computes: small operators, which several threads make slower.
  at::set_num_threads(1);
}

Trainer::~Trainer() = default;

bool Trainer::resume() {
  const auto progress = checkpoints_->load(*pipeline_, optimizer_.get());
  if (progress) before_ = done_ = static_cast<int>(progress->step);
  return progress.has_value();
}

void Trainer::save() const { checkpoints_->save(*pipeline_, optimizer_.get(), {.step = done_}); }

void Trainer::write_model(const std::filesystem::path& file) const {
  const Pipeline::StateDict own = pipeline_->state_dict();
  if (!world_) return workload_->write(file, own);
  // Each process its part, which the first one puts together.
  const auto part = [&](int process) {
    return std::filesystem::path(file.string() + ".part-" + std::to_string(process) + ".safetensors");
  };
  write_tensors(part(world_->rank()), own);
  const auto processes = static_cast<int>(world_->all_gather("").size());
  if (world_->rank() == 0) {
    Pipeline::StateDict all;
    for (int process = 0; process < processes; ++process) all.merge(read_tensors(part(process)));
    workload_->write(file, all);
  }
  world_->all_gather("");
  std::filesystem::remove(part(world_->rank()));
}

StepRecord Trainer::step() {
  try {
    return make_step();
  } catch (const NonFiniteError& error) {
    throw Error("in step " + std::to_string(done_ + 1) + " " + error.what() +
                ", which is not a finite number: try a smaller --lr, --clip 1, or --non-finite skip");
  }
}

StepRecord Trainer::make_step() {
  const auto start = std::chrono::steady_clock::now();
  StepResult result = pipeline_->step(workload_->batch(done_, pipeline_->replicas()),
                                      {.non_finite = options_.when_non_finite(), .trace = true});
  const at::Tensor norm = options_.clip ? pipeline_->clip_grad_norm(*options_.clip) : pipeline_->grad_norm();
  if (result.skipped_for.empty()) optimizer_->step();
  optimizer_->zero_grad();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;

  const Metrics metrics = measure(result.timeline, uniform_costs(plan().placement));
  if (done_ == before_ + 1 || recent_.size() == kRecentSteps) recent_.pop_front();
  recent_.push_back(std::move(result.timeline));
  const StepRecord record{.step = ++done_,
                          .loss = result.loss.item<double>(),
                          .grad_norm = norm.item<double>(),
                          .seconds = taken.count(),
                          .skipped_for = result.skipped_for,
                          .bubble = metrics.bubble_rate_makespan,
                          .peak_memory = peak_memory()};
  return record;
}

}  // namespace pipewright::cli
