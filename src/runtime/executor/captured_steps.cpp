#include "runtime/executor/captured_steps.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "runtime/device/streams.h"

namespace pipewright {
namespace {

/// What libraries set up when they are first used cannot be recorded.
constexpr int kStepsBefore = 2;
constexpr std::size_t kMostGraphs = 4;

/// All values that a microbatch brings, in a fixed order.
template <typename Microbatch, typename Visit>
void for_each_value(Microbatch& microbatch, Visit visit) {
  for (auto& value : microbatch.inputs) visit(value);
  for (auto& value : microbatch.targets) visit(value);
  for (auto& [stage, values] : microbatch.stage_inputs) {
    for (auto& value : values) visit(value);
  }
}

/// The caller's stream waits for another at the end, whatever happens.
class Aside {
 public:
  explicit Aside(c10::Stream stream)
      : stream_(stream), callers_(current_stream(stream.device())), guard_(stream) {
    wait_for(stream_, callers_);
  }
  ~Aside() { wait_for(callers_, stream_); }
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;

 private:
  c10::Stream stream_;
  c10::Stream callers_;
  c10::StreamGuard guard_;
};

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

std::string what_forbids_capture(const RankDevices& devices, int replicas, bool in_world) {
  const c10::Device device = devices.at(0, 0);
  const auto is_elsewhere = [&](const auto& each) { return each.second != device; };
  if (in_world) return "ranks of other processes take part";
  if (replicas > 1) return "there are several replicas";
  if (!device.is_cuda()) return "rank 0 is on " + device.str();
  if (std::ranges::any_of(devices.known, is_elsewhere)) return "the ranks are on several devices";
  if (!CudaGraph::is_supported()) return "this library was built without CUDA";
  return {};
}

CapturedSteps::CapturedSteps(c10::Device device, StageModels& models, const Handlers& handlers,
                             PlanRunner& eager, PlanRunner& recording)
    : device_(device),
      stream_(new_stream(device)),
      handlers_(handlers),
      eager_(eager),
      recording_(recording) {
  std::unordered_set<const c10::TensorImpl*> seen;
  const auto add = [&](const at::Tensor& tensor, std::vector<at::Tensor>& to) {
    if (tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second) to.push_back(tensor);
  };
  for (const auto& [stage, model] : models) {
    if (!model.module) continue;
    for (const auto& module : model.module->modules()) modules_.push_back(module);
    for (const at::Tensor& parameter : model.module->parameters()) add(parameter, parameters_);
    for (const at::Tensor& buffer : model.module->buffers()) add(buffer, buffers_);
  }
}

std::string CapturedSteps::what_speaks_against(const Step& step) const {
  if (handlers_.any()) return "a handler stands in for an action";
  std::string found;
  for (const MicrobatchValues& microbatch : step.microbatches) {
    for_each_value(microbatch, [&](const at::Tensor& value) {
      if (!value.defined()) return;
      if (value.device() != device_) {
        found = "a batch is on " + value.device().str() + ", not on " + device_.str();
      } else if (value.requires_grad()) {
        found = "a value of the batch requires a gradient";
      }
    });
  }
  return found;
}

CapturedSteps::Key CapturedSteps::key_of(const Step& step) const {
  Key key{std::bit_cast<std::int64_t>(step.grad_scale), step.on_output ? 1 : 0,
          at::autocast::is_autocast_enabled(device_.type()) ? 1 : 0,
          static_cast<std::int64_t>(at::autocast::get_autocast_dtype(device_.type()))};
  for (const MicrobatchValues& microbatch : step.microbatches) {
    key.push_back(static_cast<std::int64_t>(microbatch.inputs.size()));
    key.push_back(static_cast<std::int64_t>(microbatch.targets.size()));
    for (const auto& [stage, values] : microbatch.stage_inputs) {
      key.push_back(stage);
      key.push_back(static_cast<std::int64_t>(values.size()));
    }
    for_each_value(microbatch, [&](const at::Tensor& value) {
      key.push_back(value.defined() ? value.dim() : -1);
      if (!value.defined()) return;
      key.push_back(static_cast<std::int64_t>(value.scalar_type()));
      key.insert(key.end(), value.sizes().begin(), value.sizes().end());
      key.insert(key.end(), value.strides().begin(), value.strides().end());
    });
  }
  for (const auto& module : modules_) key.push_back(module->is_training() ? 1 : 0);
  const auto add_place = [&](const at::Tensor& tensor) {
    key.push_back(std::bit_cast<std::int64_t>(tensor.const_data_ptr()));
    key.push_back(tensor.requires_grad() ? 1 : 0);
  };
  std::ranges::for_each(parameters_, add_place);
  std::ranges::for_each(buffers_, add_place);
  return key;
}

CapturedSteps::Entry& CapturedSteps::entry_of(Key key) {
  const auto found = std::ranges::find(entries_, key, &Entry::key);
  if (found != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, found);
    return entries_.front();
  }
  if (entries_.size() == kMostGraphs) {
    wait_until_done(device_);
    entries_.pop_back();
  }
  return entries_.emplace_front(Entry{.key = std::move(key)});
}

bool CapturedSteps::has_gradients() const {
  return std::ranges::any_of(parameters_, [](const at::Tensor& each) { return each.grad().defined(); });
}

CapturedSteps::Ran CapturedSteps::run(Step& step, Tail* tail) {
  refusal_ = what_speaks_against(step);
  if (!refusal_.empty()) return Ran::NotAtAll;
  const auto with_tail = [&, of_step = key_of(step)] {
    Key key = of_step;
    if (tail) std::ranges::copy(tail->key(), std::back_inserter(key));
    return key;
  };
  Entry& entry = entry_of(with_tail());
  refusal_ = entry.failure;
  if (!refusal_.empty()) return Ran::NotAtAll;

  const Aside aside(stream_);
  if (!entry.recorded) {
    if (entry.seen++ < kStepsBefore) {
      eager_.run_serially(step);
      if (tail) {
        tail->prepare();
        tail->result = tail->launch(step.losses);
        entry.key = with_tail();  // it may have made memory for itself
      }
      return Ran::Eagerly;
    }
    refusal_ = what_is_outside();
    if (refusal_.empty()) {
      record(entry, step, tail);
      refusal_ = entry.failure;
    }
    if (!refusal_.empty()) return Ran::NotAtAll;
  }
  replay(*entry.recorded, step, tail);
  return Ran::Replayed;
}

std::string CapturedSteps::what_is_outside() const {
  // The node that adds to a parameter's gradient is shared by all graphs that lead to it, and does so on the
  // stream on which it was made.
  const auto is_held = [this](const at::Tensor& parameter) {
    const auto node = torch::autograd::impl::try_get_grad_accumulator(parameter);
    return node && node->stream() != stream_;
  };
  if (std::ranges::none_of(parameters_, is_held)) return {};
  return "a graph that is not the step's leads to a parameter, like that of a clone(): detach() it";
}

void CapturedSteps::record(Entry& entry, const Step& like, const Tail* tail) {
  auto recorded = std::make_unique<Recorded>(stream_);
  Step& step = recorded->step = like;
  for (MicrobatchValues& microbatch : step.microbatches) {
    for_each_value(microbatch, [](at::Tensor& value) {
      if (value.defined()) value = at::empty_like(value);
    });
  }
  recorded->outputs.resize(step.microbatches.size());
  if (like.on_output) {
    step.on_output = [&outputs = recorded->outputs](Microbatch microbatch, Values values) {
      outputs[static_cast<std::size_t>(microbatch)] = std::move(values);
    };
  }
  // The graph makes gradients of its own; what there is goes back to its place.
  std::vector<at::Tensor> before;
  before.reserve(parameters_.size());
  for (const at::Tensor& parameter : parameters_)
    before.push_back(std::exchange(parameter.mutable_grad(), {}));
  // What earlier steps have left is no use to it: its memory is its own.
  c10::getDeviceAllocator(device_.type())->emptyCache();
  try {
    recorded->graph.capture([&] {
      recording_.run_serially(step);
      if (tail) recorded->result = tail->launch(step.losses);
    });
  } catch (const c10::Error& error) {
    entry.failure = "it cannot be recorded: " + first_line(error.what_without_backtrace());
  } catch (const std::exception& error) {  // of a stage, or of an update of the caller's
    entry.failure = "it cannot be recorded: " + first_line(error.what());
  }
  for (std::size_t at = 0; at < parameters_.size(); ++at) {
    recorded->gradients.push_back(std::exchange(parameters_[at].mutable_grad(), std::move(before[at])));
  }
  if (entry.failure.empty()) entry.recorded = std::move(recorded);
}

void CapturedSteps::replay(Recorded& recorded, Step& step, Tail* tail) const {
  const at::AutoGradMode no_grad(false);
  std::vector<at::Tensor> to;
  std::vector<at::Tensor> from;
  const auto add_to = [](std::vector<at::Tensor>& list) {
    return [&list](const at::Tensor& value) {
      if (value.defined() && value.numel() > 0) list.push_back(value);
    };
  };
  for (const MicrobatchValues& microbatch : recorded.step.microbatches)
    for_each_value(microbatch, add_to(to));
  for (const MicrobatchValues& microbatch : step.microbatches) for_each_value(microbatch, add_to(from));
  if (!to.empty()) at::_foreach_copy_(to, from);

  std::vector<std::pair<at::Tensor, at::Tensor>> sums;  // with what is to be added
  for (std::size_t at = 0; at < parameters_.size(); ++at) {
    const at::Tensor& gradient = recorded.gradients[at];
    if (!gradient.defined()) continue;
    at::Tensor& sum = parameters_[at].mutable_grad();
    if (sum.defined()) {
      sums.emplace_back(sum, gradient);
    } else {
      sum = gradient;
    }
  }
  if (tail) tail->prepare();
  recorded.graph.replay();
  for (const auto& [sum, gradient] : sums) sum.add_(gradient);
  if (tail) tail->result = recorded.result;
  step.losses = at::stack(recorded.step.losses).unbind();
  if (!step.on_output) return;
  for (std::size_t at = 0; at < recorded.outputs.size(); ++at) {
    Values outputs = recorded.outputs[at];
    for (at::Tensor& output : outputs) {
      if (output.defined()) output = output.clone();
    }
    step.on_output(static_cast<Microbatch>(at), std::move(outputs));
  }
}

void CapturedSteps::keep_gradients() const {
  const at::AutoGradMode no_grad(false);
  for (std::size_t at = 0; at < parameters_.size(); ++at) {
    at::Tensor& gradient = parameters_[at].mutable_grad();
    const bool is_from_graph = gradient.defined() && std::ranges::any_of(entries_, [&](const Entry& entry) {
                                 return entry.recorded && entry.recorded->gradients[at].is_same(gradient);
                               });
    if (is_from_graph) gradient = gradient.clone();
  }
}

}  // namespace pipewright
