#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "frontend/trace/recording.h"

namespace pipewright {

/// What calling a model changes, put back at the end: random numbers, buffers, and whatever else is written
/// to, if it is announced.
class SavedState {
 public:
  SavedState(const ModelState& state, const Values& inputs);
  ~SavedState();
  SavedState(const SavedState&) = delete;
  SavedState& operator=(const SavedState&) = delete;

  /// A tensor that existed before the call.
  void watch(const at::Tensor& tensor);
  /// Must be called before a tensor is written to.
  void before_write(const at::Tensor& tensor);
  void before_use(const at::Generator& generator);

 private:
  void save(const at::Tensor& tensor);

  std::set<const c10::StorageImpl*> watched_;
  std::map<const c10::StorageImpl*, std::pair<at::Tensor, at::Tensor>>
      storages_;  // as bytes: it, what it was
  std::vector<std::pair<at::Generator, at::Tensor>> generators_;
};

}  // namespace pipewright
