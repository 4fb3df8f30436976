#pragma once

#include <torch/optim/optimizer.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "pipewright/base/error.h"
#include "pipewright/runtime/update.h"

namespace pipewright {

/// A parameter that has a gradient.
struct ReadyParameter {
  std::size_t group;
  std::size_t at;  // among the parameters of all groups
  at::Tensor parameter;
  at::Tensor gradient;
};

/// What one kernel takes: parameters of one group, device and dtype, all of them with a state that is new, or
/// none. Empty ones are left out.
struct Bundle {
  std::vector<std::size_t> at;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;  // laid out as the parameters are
  std::size_t group;
  c10::Device device;
  bool fresh;
};

/// Throws ArgumentError for parameters that the kernels cannot take.
void check_fusible(const torch::optim::Optimizer& optimizer);

/// A tensor of a state, as the kernels take it: laid out as the parameter is, zeros where there was none.
at::Tensor fitting_state(const at::Tensor& tensor, const at::Tensor& parameter);

/// A step of torch's kind: calls the closure, if any, for the loss; then both parts of the update.
at::Tensor whole_step(Update& update, const torch::optim::Optimizer::LossClosure& closure);

/// Where a tensor lies; 0 for one that is undefined.
std::int64_t place_of(const at::Tensor& tensor);
inline std::int64_t bits_of(double number) { return std::bit_cast<std::int64_t>(number); }

/// What a fused optimizer has besides the state that torch's own has: numbers of the host that kernels read
/// on the parameters' devices, and what to take back.
struct FusedMemory {
  /// Begins a new step: those that take part. Throws ArgumentError for what the kernels cannot take.
  std::vector<ReadyParameter> begin(const torch::optim::Optimizer& optimizer);
  /// Of a parameter that takes part; a new one where there is none.
  template <typename State>
  State& state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
    auto& found = optimizer.state()[parameter.unsafeGetTensorImpl()];
    if (!found) {
      found = std::make_unique<State>();
      fresh.insert(parameter.unsafeGetTensorImpl());
    }
    return static_cast<State&>(*found);
  }
  /// Learning rates go to the devices, where they have changed.
  void write_rates(const torch::optim::Optimizer& optimizer, const std::vector<ReadyParameter>& ready);
  /// The numbers of steps of those that are ready go to the devices.
  void write_counts(const torch::optim::Optimizer& optimizer, const std::vector<ReadyParameter>& ready,
                    const std::vector<std::int64_t>& numbers);
  /// The states that are new in this step are gone.
  void forget_fresh(torch::optim::Optimizer& optimizer);

  std::vector<Bundle> bundles(const torch::optim::Optimizer& optimizer) const;
  /// What was written for a group, and for a parameter. Throws Error where nothing was.
  const at::Tensor& rate(std::size_t group, c10::Device device) const;
  const at::Tensor& count(std::size_t parameter, c10::Device device) const;
  /// Throws Error for a parameter without one.
  template <typename State>
  const State& state_of(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter) const {
    const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (found == optimizer.state().end()) throw_unprepared();
    return static_cast<const State&>(*found->second);
  }
  /// Where the numbers are.
  void add_places(std::vector<std::int64_t>& to) const;
  [[noreturn]] static void throw_unprepared();

  struct Rate {
    at::Tensor tensor;
    double written;
  };
  struct Counts {
    at::Tensor all;
    std::vector<at::Tensor> each;  // its elements
  };
  std::vector<std::unordered_map<c10::Device, Rate>> rates;  // by group
  std::unordered_map<c10::Device, Counts> counts;
  std::vector<at::Tensor> prepared;       // in this step
  std::unordered_set<const void*> fresh;  // of them, those whose state is new
};

}  // namespace pipewright
