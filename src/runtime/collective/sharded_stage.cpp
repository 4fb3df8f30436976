#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "runtime/collective/stage_parameters.h"
#include "runtime/collective/stage_replicas.h"

namespace pipewright {
namespace {

/// Gives the memory of a tensor back, or brings it again: the tensor and its views stay what they are.
void set_resident(const at::Tensor& tensor, bool resident) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const std::size_t bytes = resident ? static_cast<std::size_t>(tensor.numel() * tensor.element_size()) : 0;
  storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes));
  storage->set_nbytes(bytes);
}

/// Parameters of one dtype in flat memory, of which every process keeps an equal part.
struct FlatParameters {
  at::Tensor whole;  // what the modules compute with; has memory only between UNSHARD and RESHARD
  at::Tensor shard;  // this process's part, in the dtype of the reduction
  std::vector<std::size_t> parameters;
  std::vector<std::int64_t> offsets;

  Collective::Pending gathered = {};
  at::Tensor summed = {};
  Collective::Pending sum = {};
};

class ShardedStage final : public StageReplicas {
 public:
  ShardedStage(const StageMembers& members, ReplicaLinks& links, std::optional<at::ScalarType> reduce_dtype)
      : stage_(members.stage), name_("stage " + std::to_string(stage_)), parameters_(members), links_(links) {
    const at::AutoGradMode no_grad(false);
    std::map<std::tuple<at::ScalarType, bool>, std::vector<std::size_t>> kinds;
    for (std::size_t at = 0; at < parameters_.count(); ++at) {
      const at::Tensor& parameter = parameters_.first(at);
      kinds[{parameter.scalar_type(), parameter.requires_grad()}].push_back(at);
    }
    for (const auto& [kind, indices] : kinds) flatten(indices, reduce_dtype);
    share_buffers(members, links_);
    unsharded_.resize(parameters_.member_count());
    resharded_.resize(parameters_.member_count());
  }

  void begin_step() override {
    complete_ = 0;
    started_ = 0;
    std::ranges::fill(unsharded_, 0);
    std::ranges::fill(resharded_, 0);
    parameters_.drop_gradients();
  }

  void unshard(std::size_t member) override {
    const std::lock_guard lock(links_.mutex);
    if (++unsharded_[member] <= started_) return;  // another replica was first
    const bool resident = std::ranges::any_of(resharded_, [&](std::size_t each) { return each < started_; });
    ++started_;
    const at::AutoGradMode no_grad(false);
    for (FlatParameters& flat : flats_) start_gather(flat, resident);
  }

  void wait_for_parameters() override {
    for (const FlatParameters& flat : flats_) {
      if (const Collective::Pending gathered = gathered_of(flat)) links_.gathers->wait(gathered);
    }
  }

  void reshard(std::size_t member) override {
    wait_for_parameters();  // what is still coming must not be given back
    const std::lock_guard lock(links_.mutex);
    ++resharded_[member];
    if (std::ranges::any_of(resharded_, [&](std::size_t each) { return each < started_; })) return;
    for (const FlatParameters& flat : flats_) set_resident(flat.whole, false);
  }

  void reduce_grad() override {
    const std::lock_guard lock(links_.mutex);
    if (++complete_ < parameters_.member_count() || flats_.empty()) return;
    const at::AutoGradMode no_grad(false);
    has_grad_ = at::zeros({static_cast<std::int64_t>(parameters_.count())}, at::kInt);
    for (FlatParameters& flat : flats_) {
      if (!parameters_.first(flat.parameters.front()).requires_grad()) continue;
      start_sum(flat);
    }
    has_grad_ = has_grad_.to(flats_.front().whole.device());
    counted_ = links_.sums->all_reduce(has_grad_, "count of the gradients of " + name_);
  }

  void end_step() override {
    const at::AutoGradMode no_grad(false);
    for (FlatParameters& flat : flats_) {
      if (flat.gathered) links_.gathers->wait(std::exchange(flat.gathered, {}));
    }
    for (const Collective::Pending& each : std::exchange(unused_, {})) links_.gathers->wait(each);
    if (!counted_) return;
    links_.sums->wait(std::exchange(counted_, {}));
    has_grad_ = has_grad_.cpu();
    for (FlatParameters& flat : flats_) {
      if (flat.sum) finish_sum(flat);
    }
  }

  void drop_step() override {
    parameters_.drop_gradients();
    // The memory of parameters that are still coming stays: somebody may be writing there.
    for (FlatParameters& flat : flats_) {
      flat.gathered.reset();
      flat.sum.reset();
      flat.summed.reset();
    }
    unused_.clear();
    counted_.reset();
  }

  std::vector<LocalParameter> parameters() const override { return pieces_; }

  void gather_state(Pipeline::StateDict& state) override {
    const at::AutoGradMode no_grad(false);
    for (const FlatParameters& flat : flats_) {
      const at::Tensor whole = at::empty(flat.whole.sizes(), flat.shard.options());
      links_.gathers->wait(links_.gathers->all_gather(whole, flat.shard, "parameters of " + name_));
      for (std::size_t i = 0; i < flat.parameters.size(); ++i) {
        const at::Tensor& parameter = parameters_.first(flat.parameters[i]);
        state[parameters_.name(flat.parameters[i])] =
            whole.narrow(0, flat.offsets[i], parameter.numel()).view(parameter.sizes()).clone();
      }
    }
  }

  void load_state(const Pipeline::StateDict& state, Pipeline::StateDict& theirs) override {
    const at::AutoGradMode no_grad(false);
    for (std::size_t at = 0; at < parameters_.count(); ++at) theirs.erase(parameters_.name(at));
    for (const LocalParameter& piece : pieces_) {
      const at::Tensor whole = state.at(piece.name).reshape({-1});
      piece.tensor.copy_(whole.narrow(0, piece.offset, piece.tensor.numel()));
    }
  }

 private:
  void flatten(const std::vector<std::size_t>& indices, std::optional<at::ScalarType> reduce_dtype) {
    FlatParameters flat;
    FlatLayout layout;
    for (const std::size_t at : indices) {
      flat.parameters.push_back(at);
      flat.offsets.push_back(layout.add(parameters_.first(at)));
    }
    const at::Tensor& like = parameters_.first(indices.front());
    const std::int64_t processes = links_.gathers->size();
    const std::int64_t length = std::max<std::int64_t>(1, (layout.length() + processes - 1) / processes);
    flat.whole = at::zeros({length * processes}, like.options().requires_grad(false));
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const at::Tensor& parameter = parameters_.first(indices[i]);
      const at::Tensor part =
          flat.whole.narrow(0, flat.offsets[i], parameter.numel()).view(parameter.sizes());
      part.copy_(parameter);
      parameters_.share(indices[i], part);
    }
    links_.sums->wait(links_.sums->broadcast(flat.whole, "sharing of the parameters of " + name_));
    const std::int64_t begin = links_.gathers->rank() * length;
    const at::ScalarType dtype =
        like.requires_grad() ? reduce_dtype.value_or(like.scalar_type()) : like.scalar_type();
    flat.shard = flat.whole.narrow(0, begin, length).to(dtype, /*non_blocking=*/false, /*copy=*/true);
    set_resident(flat.whole, false);
    for (std::size_t i = 0; i < indices.size(); ++i) {
      add_piece(indices[i], flat, flat.offsets[i] - begin);
    }
    flats_.push_back(std::move(flat));
  }

  /// `start`: where the parameter begins, from the beginning of the shard.
  void add_piece(std::size_t at, const FlatParameters& flat, std::int64_t start) {
    const at::Tensor& parameter = parameters_.first(at);
    const std::int64_t from = std::clamp<std::int64_t>(start, 0, flat.shard.numel());
    const std::int64_t to = std::clamp<std::int64_t>(start + parameter.numel(), 0, flat.shard.numel());
    if (from == to && parameter.numel() > 0) return;
    pieces_.push_back(
        {.name = parameters_.name(at),
         .tensor =
             flat.shard.narrow(0, from, to - from).variable_data().requires_grad_(parameter.requires_grad()),
         .sizes = parameter.sizes().vec(),
         .offset = from - start,
         .stage = stage_});
    piece_of_[at] = {pieces_.size() - 1, from};
  }

  /// `resident`: some replica here still computes with what was gathered before, so that this time only
  /// the other processes get something.
  void start_gather(FlatParameters& flat, bool resident) {
    const at::Tensor part = flat.shard.to(flat.whole.scalar_type());
    const std::string what = "gathering of the parameters of " + name_;
    if (resident) {
      unused_.push_back(links_.gathers->all_gather(at::empty_like(flat.whole), part, what));
      return;
    }
    set_resident(flat.whole, true);
    flat.gathered = links_.gathers->all_gather(flat.whole, part, what);
  }

  Collective::Pending gathered_of(const FlatParameters& flat) {
    const std::lock_guard lock(links_.mutex);
    return flat.gathered;
  }

  void start_sum(FlatParameters& flat) {
    const at::Tensor grads = at::zeros(flat.whole.sizes(), flat.shard.options());
    for (std::size_t i = 0; i < flat.parameters.size(); ++i) {
      const std::size_t at = flat.parameters[i];
      const at::Tensor out = grads.narrow(0, flat.offsets[i], parameters_.first(at).numel());
      if (parameters_.take_gradients(at, out)) has_grad_[static_cast<std::int64_t>(at)] = 1;
    }
    flat.sum = links_.sums->reduce_scatter(flat.summed, grads, "sum of the gradients of " + name_);
  }

  void finish_sum(FlatParameters& flat) {
    links_.sums->wait(std::exchange(flat.sum, {}));
    const at::Tensor summed = std::exchange(flat.summed, {}).clone();  // the rest of the sum may go
    for (const std::size_t at : flat.parameters) {
      const auto found = piece_of_.find(at);
      if (found == piece_of_.end() || has_grad_[static_cast<std::int64_t>(at)].item<int>() == 0) continue;
      const at::Tensor& piece = pieces_[found->second.index].tensor;
      const at::Tensor grad = summed.narrow(0, found->second.from, piece.numel()).variable_data();
      at::Tensor& sum = piece.mutable_grad();
      sum = sum.defined() ? sum + grad : grad;
    }
  }

  struct PlaceOfPiece {
    std::size_t index;
    std::int64_t from;  // in the shard
  };

  const Stage stage_;
  const std::string name_;
  const StageParameters parameters_;
  ReplicaLinks& links_;
  std::vector<FlatParameters> flats_;
  std::vector<LocalParameter> pieces_;
  std::map<std::size_t, PlaceOfPiece> piece_of_;  // by parameter

  std::size_t started_ = 0;             // gatherings of this step
  std::vector<std::size_t> unsharded_;  // by member: how many of them it has asked for
  std::vector<std::size_t> resharded_;  // and given up
  std::vector<Collective::Pending> unused_;
  std::size_t complete_ = 0;  // replicas whose gradients are
  at::Tensor has_grad_;       // by parameter: how many processes have one
  Collective::Pending counted_;
};

}  // namespace

std::unique_ptr<StageReplicas> make_sharded_stage(const StageMembers& members, ReplicaLinks& links,
                                                  std::optional<at::ScalarType> reduce_dtype) {
  return std::make_unique<ShardedStage>(members, links, reduce_dtype);
}

}  // namespace pipewright
