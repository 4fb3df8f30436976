#include "train/trainer.h"

#include <ATen/Parallel.h>
#include <ATen/ops/stack.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "pipewright/base/error.h"
#include "pipewright/frontend/tensor_file.h"
#include "torch/devices.h"

namespace pipewright::cli {
namespace {

constexpr std::size_t kRecentSteps = 20;

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
    : options_(options), threads_before_(at::get_num_threads()), world_(world) {
  const Schedule schedule = options_.load_schedule();
  devices_ = options_.device.by_rank(schedule.rank_count());
  current_.reset_device(devices_.front());
  PeakMemory::reset(devices_);
  workload_ = options_.exported.file.empty() ? make_character_workload(options_, schedule)
                                             : make_model_workload(options_, schedule, world.get());
  PipelineOptions wanted{.timeout = milliseconds(options_.timeout),
                         .threads_per_rank = options_.threads_per_rank,
                         .world = world,
                         .data_parallel = options_.data_parallel,
                         .sharded = options_.sharded,
                         .flight_record = options_.flight_record,
                         .devices = devices_,
                         .cuda_graph = options_.cuda_graph};
  workload_->configure(wanted);
  pipeline_ = std::make_unique<Pipeline>(schedule, workload_->stages(), std::move(wanted));
  parameter_count_ = count_parameters(*pipeline_, world.get());
  update_ = std::make_unique<TrainingUpdate>(options_, *pipeline_, devices_.front());
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

Trainer::~Trainer() { at::set_num_threads(threads_before_); }

bool Trainer::resume() {
  const auto progress = checkpoints_->load(*pipeline_, &update_->optimizer());
  if (progress) before_ = done_ = static_cast<int>(progress->step);
  return progress.has_value();
}

void Trainer::save() const { checkpoints_->save(*pipeline_, &update_->optimizer(), {.step = done_}); }

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

bool Trainer::shares_device() const {
  // They are given out in turn: the first is the first to be given again.
  return !world_ && on_cuda() && std::ranges::count(devices_, devices_.front()) > 1;
}

StepRecord Trainer::step() {
  try {
    return make_step();
  } catch (const NonFiniteError& error) {
    throw Error("in step " + std::to_string(done_ + 1) + " " + error.what() +
                ", which is not a finite number: try a smaller --lr, --clip 1, or --non-finite skip");
  }
}

Batch Trainer::next_batch() const {
  Batch batch = workload_->batch(done_, pipeline_->replicas());
  const StageDevices device_of = by_stage(devices_, plan().placement);
  bring(batch.inputs, device_of(0));
  bring(batch.targets, device_of(plan().last_stage()));
  return batch;
}

StepRecord Trainer::make_step() {
  const auto start = std::chrono::steady_clock::now();
  const bool trace = !options_.cuda_graph;
  StepResult result = pipeline_->step(
      next_batch(), {.non_finite = options_.when_non_finite(), .update = update_.get(), .trace = trace});
  pipeline_->zero_grad();
  // Waits for the device: once for both numbers, behind all that the step has launched there.
  const at::Tensor told =
      at::stack({result.loss.to(at::kDouble), update_->norm().to(result.loss.device(), at::kDouble)}).cpu();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;

  StepRecord record{.step = done_ + 1,
                    .loss = told[0].item<double>(),
                    .grad_norm = result.skipped_for.empty() ? told[1].item<double>() : 0,
                    .seconds = taken.count(),
                    .skipped_for = result.skipped_for,
                    .peak_memory = peak_memory()};
  for (const int live : result.peak_live) record.peak_live = std::max(record.peak_live, live);
  if (trace) {
    record.bubble = measure(result.timeline, uniform_costs(plan().placement)).bubble_rate_makespan;
    if (done_ == before_ + 1 || recent_.size() == kRecentSteps) recent_.pop_front();
    recent_.push_back(std::move(result.timeline));
  }
  ++done_;
  return record;
}

}  // namespace pipewright::cli
