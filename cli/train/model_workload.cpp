#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/core/Generator.h>

#include <algorithm>
#include <utility>

#include "model/model_options.h"
#include "model/row_data.h"
#include "pipewright/base/error.h"
#include "pipewright/frontend/graph_stages.h"
#include "pipewright/frontend/write_model.h"
#include "torch/devices.h"
#include "train/workload.h"

namespace pipewright::cli {
namespace {

/// Along the last dimension where the target has the sizes of all others, as language models have it; else
/// along the second.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target) {
  if (logits.dim() > 2 &&
      target.sizes() == logits.sizes().slice(0, static_cast<std::size_t>(logits.dim()) - 1)) {
    return at::cross_entropy_loss(logits.flatten(0, -2), target.flatten());
  }
  return at::cross_entropy_loss(logits, target);
}

/// The tensors among the outputs, counted: where that of this name is.
std::size_t output_at(const Graph& graph, const std::string& name) {
  std::size_t at = 0;
  for (const Graph::Port& port : graph.outputs) {
    if (!std::holds_alternative<ValueId>(port.is)) continue;
    if (port.name == name) return at;
    ++at;
  }
  return 0;
}

class ModelWorkload : public Workload {
 public:
  ModelWorkload(const TrainOptions& options, const Schedule& schedule, World* world)
      : cut_(options.exported, schedule.stage_count(), world),
        device_of_(by_stage(options.device.by_rank(schedule.rank_count()), schedule.placement)),
        data_(options.data, cut_.graph()),
        loss_(options.loss),
        seed_(options.model.seed),
        rows_of_replica_(options.batch.value_or(data_.exported_rows()) * schedule.microbatches),
        replicas_(options.data_parallel) {
    if (has_target()) target_ = data_.tensor("target");
    if (rows_per_step() > data_.rows()) {
      throw ArgumentError(options.data + " has " + std::to_string(data_.rows()) + " rows, a step takes " +
                          std::to_string(rows_per_step()) +
                          ": use fewer --microbatches or a smaller --batch");
    }
  }

  StageFactory stages() const override { return cut_.stages(device_of_); }

  void configure(PipelineOptions& options) const override {
    cut_.connect(options);
    options.split.inputs = data_.chunks();
    if (loss_ == "cross_entropy") {
      options.loss = [](const Values& outputs, const Values& targets) {
        return cross_entropy(outputs.at(0), targets.at(0));
      };
    } else if (loss_ == "mse") {
      options.loss = [](const Values& outputs, const Values& targets) {
        return at::mse_loss(outputs.at(0), targets.at(0));
      };
    } else {
      options.loss = [at = output_at(cut_.graph(), "loss")](const Values& outputs, const Values&) {
        return outputs.at(at);
      };
    }
  }

  Batch batch(int step, const std::vector<int>& replicas) const override {
    std::vector<at::Tensor> parts;
    parts.reserve(replicas.size());
    for (const int replica : replicas) {
      parts.push_back(rows(step * rows_per_step() + replica * rows_of_replica_));
    }
    const at::Tensor own = at::cat(parts);
    Batch batch{.inputs = data_.inputs(own), .targets = {}};
    if (has_target()) batch.targets = {target_.index_select(0, own)};
    return batch;
  }

  std::int64_t items_per_step() const override { return rows_per_step(); }
  std::string item() const override { return "rows"; }
  std::vector<std::string> other_names(const std::string& name) const override {
    return names_in_whole(cut_.graph(), name);
  }
  void write(const std::filesystem::path& file, const Pipeline::StateDict& of_stages) const override {
    const NamedTensors state = without_copies(of_stages, cut_.graph());
    if (file.extension() == ".pt2") {
      write_model(file, cut_.model(), cut_.graph(), state);
    } else {
      write_tensors(file, state);
    }
  }

 private:
  bool has_target() const { return loss_ != "output"; }
  std::int64_t rows_per_step() const { return rows_of_replica_ * replicas_; }

  /// Those of a replica from a place on, in the order of all epochs: each is a permutation of its own.
  at::Tensor rows(std::int64_t from) const {
    std::vector<at::Tensor> parts;
    for (std::int64_t left = rows_of_replica_; left > 0;) {
      const std::int64_t at = from % data_.rows();
      const std::int64_t count = std::min(left, data_.rows() - at);
      parts.push_back(permutation(from / data_.rows()).slice(0, at, at + count));
      from += count;
      left -= count;
    }
    return at::cat(parts);
  }

  at::Tensor permutation(std::int64_t epoch) const {
    constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15;  // seeds of neighbouring epochs far apart
    auto generator =
        at::make_generator<at::CPUGeneratorImpl>(seed_ + kOdd * static_cast<std::uint64_t>(epoch + 1));
    return at::randperm(data_.rows(), generator, at::TensorOptions(at::kLong));
  }

  CutModel cut_;
  StageDevices device_of_;
  RowData data_;
  std::string loss_;
  std::uint64_t seed_;
  std::int64_t rows_of_replica_;
  std::int64_t replicas_;
  at::Tensor target_;
};

}  // namespace

std::unique_ptr<Workload> make_model_workload(const TrainOptions& options, const Schedule& schedule,
                                              World* world) {
  return std::make_unique<ModelWorkload>(options, schedule, world);
}

}  // namespace pipewright::cli
