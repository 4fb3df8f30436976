#include <ATen/core/VariableHooksInterface.h>

#include <utility>

#include "frontend/trace/recorder.h"
#include "pipewright/base/error.h"

namespace pipewright {
namespace {

/// What libtorch does with a tensor's autograd data has no operators: this stands before it, and tells the
/// recorder of the thread, if there is one.
class VariableWatch final : public at::impl::VariableHooksInterface {
 public:
  explicit VariableWatch(const at::impl::VariableHooksInterface& next) : next_(next) {}

  at::TensorBase variable_data(const at::TensorBase& self) const override {
    return recorded(self, next_.variable_data(self));
  }
  at::TensorBase tensor_data(const at::TensorBase& self) const override {
    return recorded(self, next_.tensor_data(self));
  }
  void set_data(const at::TensorBase& self, const at::TensorBase& data) const override {
    refuse("the forward calls set_data: a graph cannot give a tensor other memory. Write to it in place");
    next_.set_data(self, data);
  }
  unsigned _register_hook(const at::TensorBase& self,
                          std::function<at::TensorBase(const at::TensorBase&)> hook) const override {
    refuse("the forward registers a hook on a tensor: it would be lost");
    return next_._register_hook(self, std::move(hook));
  }
  void _backward(const at::Tensor& self, at::TensorList inputs, const std::optional<at::Tensor>& gradient,
                 std::optional<bool> keep_graph, bool create_graph) const override {
    refuse("the forward calls backward, which a graph cannot have");
    next_._backward(self, inputs, gradient, keep_graph, create_graph);
  }

  const decltype(torch::autograd::Edge::function)& grad_fn(const at::TensorBase& self) const override {
    return next_.grad_fn(self);
  }
  void remove_hook(const at::TensorBase& self, unsigned at) const override { next_.remove_hook(self, at); }
  bool is_view(const at::TensorBase& self) const override { return next_.is_view(self); }
  const at::TensorBase& base(const at::TensorBase& self) const override { return next_.base(self); }
  const std::string& name(const at::TensorBase& self) const override { return next_.name(self); }
  bool is_leaf(const at::TensorBase& self) const override { return next_.is_leaf(self); }
  int64_t output_nr(const at::TensorBase& self) const override { return next_.output_nr(self); }
  at::TensorBase data(const at::TensorBase& self) const override { return next_.data(self); }
  int64_t _version(const at::TensorBase& self) const override { return next_._version(self); }
  void retain_grad(const at::TensorBase& self) const override { next_.retain_grad(self); }
  bool retains_grad(const at::TensorBase& self) const override { return next_.retains_grad(self); }
  void requires_grad_(const at::TensorBase& self, bool is_wanted) const override {
    next_.requires_grad_(self, is_wanted);
  }
  void basic_autograd_not_implemented_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                               torch::jit::Stack* stack) const override {
    next_.basic_autograd_not_implemented_fallback(op, keys, stack);
  }
  std::optional<c10::ScalarType> grad_dtype(const at::TensorBase& self) const override {
    return next_.grad_dtype(self);
  }
  void set_grad_dtype(const at::TensorBase& self,
                      const std::optional<c10::ScalarType>& dtype) const override {
    next_.set_grad_dtype(self, dtype);
  }

 private:
  static at::TensorBase recorded(const at::TensorBase& self, at::TensorBase data) {
    if (Recorder* recorder = Recorder::current()) recorder->add_data(at::Tensor(self), at::Tensor(data));
    return data;
  }
  static void refuse(const char* what) {
    if (Recorder* recorder = Recorder::current()) recorder->refuse(what);
  }

  const at::impl::VariableHooksInterface& next_;
};

}  // namespace

void install_variable_watch() {
  // Once, and for as long as there are tensors: it is not destroyed.
  static const bool is_installed = [] {
    at::impl::SetVariableHooks(new VariableWatch(*at::impl::GetVariableHooks()));
    return true;
  }();
  static_cast<void>(is_installed);
}

}  // namespace pipewright
