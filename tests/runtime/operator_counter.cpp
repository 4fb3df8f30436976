#include "runtime/operator_counter.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <string_view>

#include "pipewright/runtime/random.h"

namespace pipewright {
namespace {

std::mutex mutex;
std::map<std::string, std::map<std::string, int>> counts;
std::map<std::string, int> calls;

constexpr std::array<std::string_view, 11> kHeavy = {"aten::mm",
                                                     "aten::addmm",
                                                     "aten::addmm_",
                                                     "aten::bmm",
                                                     "aten::baddbmm",
                                                     "aten::convolution_backward",
                                                     "aten::native_layer_norm_backward",
                                                     "aten::native_group_norm_backward",
                                                     "aten::native_batch_norm_backward",
                                                     "aten::embedding_dense_backward",
                                                     "aten::tanh_backward"};

/// The mask of gradients to compute, which such operators take last, counts each of them.
int gradients_asked_for(const at::RecordFunction& call) {
  const auto inputs = call.inputs();
  if (inputs.empty() || !inputs.back().isBoolList()) return 1;
  const auto mask = inputs.back().toBoolList().vec();
  return static_cast<int>(std::count(mask.begin(), mask.end(), true));
}

std::unique_ptr<at::ObserverContext> count_call(const at::RecordFunction& call) {
  {
    const std::lock_guard lock(mutex);
    ++calls[call.name()];
  }
  if (std::find(kHeavy.begin(), kHeavy.end(), call.name()) != kHeavy.end()) {
    const auto action = current_action();
    const std::string where =
        action ? std::to_string(action->stage) + std::string(to_text(action->kind)) : "";
    const std::lock_guard lock(mutex);
    // A product is one, also where it adds to what is there.
    const std::string name = std::string_view(call.name()) == "aten::addmm_" ? "aten::mm" : call.name();
    counts[where][name] += gradients_asked_for(call);
  }
  return nullptr;
}

}  // namespace

OperatorCounter::OperatorCounter() {
  counts.clear();
  calls.clear();
  handle_ = at::addGlobalCallback(
      at::RecordFunctionCallback(&count_call).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

OperatorCounter::~OperatorCounter() { at::removeCallback(handle_); }

int OperatorCounter::calls_of(const std::string& name) const {
  const std::lock_guard lock(mutex);
  const auto found = calls.find(name);
  return found == calls.end() ? 0 : found->second;
}

std::map<std::string, int> OperatorCounter::all() const {
  const std::lock_guard lock(mutex);
  std::map<std::string, int> sum;
  for (const auto& [where, by_name] : counts) {
    for (const auto& [name, count] : by_name) sum[name] += count;
  }
  return sum;
}

std::map<std::string, int> OperatorCounter::in(const std::string& action) const {
  const std::lock_guard lock(mutex);
  const auto found = counts.find(action);
  return found == counts.end() ? std::map<std::string, int>() : found->second;
}

}  // namespace pipewright
