#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "runtime/collective/stage_parameters.h"
#include "runtime/collective/stage_replicas.h"

namespace pipewright {
namespace {

/// Gradients are summed in messages of about so many bytes: several are under way at once.
constexpr std::int64_t kBucketBytes = 25 << 20;

class ReplicatedStage final : public StageReplicas {
 public:
  ReplicatedStage(const StageMembers& members, ReplicaLinks& links,
                  std::optional<at::ScalarType> reduce_dtype)
      : stage_(members.stage), name_("stage " + std::to_string(stage_)), parameters_(members), links_(links) {
    const at::AutoGradMode no_grad(false);
    for (std::size_t at = 0; at < parameters_.count(); ++at) {
      const at::Tensor& parameter = parameters_.first(at);
      if (links_.sums) {
        const at::Tensor values = parameter.detach().contiguous();
        links_.sums->wait(links_.sums->broadcast(values, "sharing of parameter " + parameters_.name(at)));
        if (!values.is_alias_of(parameter)) parameter.copy_(values);
      }
      parameters_.share(at, parameter.detach());
      if (parameter.requires_grad()) add_to_bucket(at, reduce_dtype.value_or(parameter.scalar_type()));
    }
    share_buffers(members, links_);
  }

  void begin_step() override {
    complete_ = 0;
    earlier_.clear();
    for (std::size_t at = 0; at < parameters_.count(); ++at) {
      earlier_.push_back(parameters_.first(at).grad());
    }
    parameters_.drop_gradients();
  }

  void unshard(std::size_t /*member*/) override {}
  void wait_for_parameters() override {}
  void reshard(std::size_t /*member*/) override {}

  void reduce_grad() override {
    const std::lock_guard lock(links_.mutex);
    if (++complete_ < parameters_.member_count()) return;
    const at::AutoGradMode no_grad(false);
    for (Bucket& bucket : buckets_) start_sum(bucket);
  }

  void end_step() override {
    const at::AutoGradMode no_grad(false);
    if (complete_ == parameters_.member_count()) {
      for (Bucket& bucket : buckets_) finish_sum(bucket);
    }
    for (std::size_t at = 0; at < parameters_.count(); ++at) {
      at::Tensor& grad = parameters_.first(at).mutable_grad();
      at::Tensor& earlier = earlier_[at];
      if (earlier.defined()) grad = grad.defined() ? grad + earlier : std::move(earlier);
    }
    earlier_.clear();
  }

  void drop_step() override {
    parameters_.drop_gradients();
    for (std::size_t at = 0; at < earlier_.size(); ++at) {
      parameters_.first(at).mutable_grad() = std::move(earlier_[at]);
    }
    earlier_.clear();
    for (Bucket& bucket : buckets_) bucket.forget();
  }

  std::vector<LocalParameter> parameters() const override {
    std::vector<LocalParameter> all;
    for (std::size_t at = 0; at < parameters_.count(); ++at) {
      const at::Tensor& parameter = parameters_.first(at);
      all.push_back({.name = parameters_.name(at),
                     .tensor = parameter,
                     .sizes = parameter.sizes().vec(),
                     .counts = !links_.sums || links_.sums->rank() == 0,
                     .stage = stage_});
    }
    return all;
  }

  void gather_state(Pipeline::StateDict& /*state*/) override {}
  void load_state(const Pipeline::StateDict& /*state*/, Pipeline::StateDict& /*theirs*/) override {}

 private:
  /// Gradients that are summed by one message, with a flag for each that says where there is one.
  struct Bucket {
    at::ScalarType dtype;
    at::Device device;
    FlatLayout layout;
    std::vector<std::size_t> parameters;
    std::vector<std::int64_t> offsets;

    at::Tensor flat = {};
    bool all_here = true;  // this process has a gradient for each
    Collective::Pending sum = {};

    void forget() {
      flat.reset();
      sum.reset();
    }
  };

  void add_to_bucket(std::size_t at, at::ScalarType dtype) {
    const at::Tensor& parameter = parameters_.first(at);
    const auto fits = [&](const Bucket& bucket) {
      return bucket.dtype == dtype && bucket.device == parameter.device() &&
             (bucket.layout.length() + parameter.numel()) *
                     static_cast<std::int64_t>(c10::elementSize(dtype)) <=
                 kBucketBytes;
    };
    if (buckets_.empty() || !fits(buckets_.back())) {
      buckets_.push_back(
          {.dtype = dtype, .device = parameter.device(), .layout = {}, .parameters = {}, .offsets = {}});
    }
    Bucket& bucket = buckets_.back();
    bucket.parameters.push_back(at);
    bucket.offsets.push_back(bucket.layout.add(parameter));
  }

  void start_sum(Bucket& bucket) const {
    const auto count = static_cast<std::int64_t>(bucket.parameters.size());
    const std::int64_t length = bucket.layout.length();
    bucket.flat = at::zeros({length + count}, at::TensorOptions(bucket.dtype).device(bucket.device));
    bucket.all_here = true;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::size_t at = bucket.parameters[static_cast<std::size_t>(i)];
      const bool here = parameters_.take_gradients(
          at,
          bucket.flat.narrow(0, bucket.offsets[static_cast<std::size_t>(i)], parameters_.first(at).numel()));
      bucket.flat.narrow(0, length + i, 1).fill_(here ? 1 : 0);
      bucket.all_here &= here;
    }
    if (links_.sums) bucket.sum = links_.sums->all_reduce(bucket.flat, "sum of the gradients of " + name_);
  }

  /// Each parameter's gradient becomes a part of the bucket; a tensor of its own for all that
  /// optimizers do with it.
  void finish_sum(Bucket& bucket) const {
    if (bucket.sum) links_.sums->wait(bucket.sum);
    const auto count = static_cast<std::int64_t>(bucket.parameters.size());
    at::Tensor flags;
    if (!bucket.all_here) flags = bucket.flat.narrow(0, bucket.layout.length(), count).cpu();
    for (std::int64_t i = 0; i < count; ++i) {
      if (flags.defined() && flags[i].item<double>() == 0) continue;
      const at::Tensor& parameter = parameters_.first(bucket.parameters[static_cast<std::size_t>(i)]);
      parameter.mutable_grad() =
          bucket.flat.narrow(0, bucket.offsets[static_cast<std::size_t>(i)], parameter.numel())
              .view(parameter.sizes())
              .to(parameter.scalar_type())
              .variable_data();
    }
    bucket.forget();
  }

  const Stage stage_;
  const std::string name_;
  const StageParameters parameters_;
  ReplicaLinks& links_;
  std::vector<Bucket> buckets_;
  std::size_t complete_ = 0;         // replicas whose gradients are
  std::vector<at::Tensor> earlier_;  // gradients of earlier steps
};

}  // namespace

std::unique_ptr<StageReplicas> make_replicated_stage(const StageMembers& members, ReplicaLinks& links,
                                                     std::optional<at::ScalarType> reduce_dtype) {
  return std::make_unique<ReplicatedStage>(members, links, reduce_dtype);
}

}  // namespace pipewright
