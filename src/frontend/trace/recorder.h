#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/TensorImpl.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "frontend/graph/unique_names.h"
#include "frontend/trace/autograd_watch.h"
#include "frontend/trace/recording.h"
#include "frontend/trace/saved_state.h"
#include "frontend/trace/thread_modes.h"

namespace pipewright {

/// Writes down every operator that this thread calls, while it exists and is not paused.
///
/// Operators are seen before autograd and autocast come to them; those that they call themselves are not. A
/// tensor is known by its object, never by its memory: whatever gets a new object without an operator is a
/// constant.
class Recorder {
 public:
  Recorder(const ModelState& state, const Sample& sample, SavedState& saved);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// The one of this thread, if it records now.
  static Recorder* current();

  /// The sample's inputs, as the model is to be called with them.
  const Values& inputs() const { return inputs_; }
  Recording finish(const Values& outputs);

  /// Calls the operator, and writes it down.
  void call(const c10::OperatorHandle& op, torch::jit::Stack& stack);
  /// A tensor that shares a known one's memory and nothing else, as `data()` gives it.
  void add_data(const at::Tensor& of, const at::Tensor& data);
  void add_split();
  /// Throws Error, now and, where the model catches it, again at the end.
  [[noreturn]] void refuse(const std::string& what);

 private:
  struct Known {
    c10::weak_intrusive_ptr<c10::TensorImpl> object;  // held, so that no other gets its address
    ValueId value;
    bool required_grad;  // when it was given
    /// Shared by those that share memory: an operator has made it and none has written to it.
    std::shared_ptr<bool> is_unwritten;
  };

  /// What is known of an operator's arguments after it has been called.
  struct Taken {
    bool has_grad = false;
    std::set<const c10::StorageImpl*> storages;
    std::shared_ptr<bool> is_unwritten;  // of that which its results share memory with
  };

  void call_checked(const c10::OperatorHandle& op, torch::jit::Stack& stack);
  bool reads_data(const c10::FunctionSchema& schema, const torch::jit::Stack& stack);
  ValueId add_value(const std::string& name, const at::Tensor& tensor);
  Known& know(const at::Tensor& tensor, ValueId value);
  ValueId give(const std::string& name, const at::Tensor& tensor);
  ValueId constant(const at::Tensor& tensor, const std::string& user);
  std::variant<c10::IValue, ValueId> tensor_argument(const at::Tensor& tensor, const std::string& user);
  Argument argument(const c10::IValue& value, const std::string& user);
  void before_call(const c10::FunctionSchema& schema, const c10::Argument& argument,
                   const at::Tensor& tensor);
  Taken take_arguments(const c10::FunctionSchema& schema, const torch::jit::Stack& stack, GraphNode& node);
  void add_outputs(const c10::FunctionSchema& schema, const torch::jit::Stack& stack, const Taken& taken,
                   GraphNode& node);

  SavedState& saved_;
  const ThreadModes modes_;
  AutogradWatch autograd_;
  Recording recording_;
  Values inputs_;
  ValueId first_made_here_ = 0;  // those before it are parameters and buffers
  std::map<const c10::TensorImpl*, Known> known_;
  UniqueNames names_;
  /// Memory that values share without the operators' schemas saying so: partitions would not know.
  std::map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> hidden_aliases_;
  std::optional<std::string> refusal_;
};

/// Sees to it that operators called on this thread go to its recorder.
class RecordingScope {
 public:
  RecordingScope();

 private:
  c10::impl::IncludeDispatchKeyGuard include_;
};

/// Sees to it that `data()` and whatever else has no operator goes to the recorder.
void install_variable_watch();

}  // namespace pipewright
