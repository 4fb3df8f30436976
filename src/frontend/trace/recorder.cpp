#include "frontend/trace/recorder.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/library.h>

#include <sstream>
#include <utility>

#include "frontend/graph/effects.h"
#include "frontend/graph/number_operators.h"
#include "frontend/graph/uses.h"
#include "frontend/trace/operators.h"
#include "pipewright/base/error.h"

namespace pipewright {
namespace {

constexpr c10::DispatchKey kRecord = c10::DispatchKey::DeferredInit;  // above autograd and autocast, and free

Recorder*& recorder_of_thread() {
  thread_local Recorder* recorder = nullptr;
  return recorder;
}

void record_operator(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Recorder* recorder = Recorder::current();
  if (!recorder) throw Error(op.schema().name() + " is called on another thread than the one that traces");
  recorder->call(op, *stack);
}

std::string text_of(const at::Tensor& tensor) {
  std::ostringstream out;
  out << tensor.scalar_type() << ' ' << tensor.sizes();
  return out.str();
}

/// `linear` for `aten::linear`.
std::string short_name(const std::string& op) {
  const std::size_t colon = op.rfind(':');
  return colon == std::string::npos ? op : op.substr(colon + 1);
}

template <typename Visit>
void for_each_tensor(const c10::IValue& value, Visit visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& each : value.toTensorVector()) visit(each);
  } else if (value.isList()) {
    for (const c10::IValue& each : value.toListRef()) {
      if (each.isTensor()) visit(each.toTensor());
    }
  }
}

bool aliases(const c10::Argument& argument) { return argument.alias_info() != nullptr; }

}  // namespace

RecordingScope::RecordingScope() : include_(kRecord) {
  static const torch::Library library = [] {
    torch::Library fallback(torch::Library::IMPL, "_", kRecord, __FILE__, __LINE__);
    fallback.fallback(torch::CppFunction::makeFromBoxedFunction<&record_operator>());
    return fallback;
  }();
  install_variable_watch();
}

Recorder::Recorder(const ModelState& state, const Sample& sample, SavedState& saved) : saved_(saved) {
  recording_.sample = sample;
  Graph& graph = recording_.graph;
  const auto add_state = [&](const auto& named, std::map<std::string, ValueId>& values) {
    for (const auto& [name, tensor] : named) {
      const auto found = known_.find(tensor.unsafeGetTensorImpl());
      values[name] = found != known_.end() ? found->second.value : give(name, tensor);
    }
  };
  add_state(state.parameters, graph.parameters);
  add_state(state.buffers, graph.buffers);
  first_made_here_ = static_cast<ValueId>(graph.values.size());
  for (std::size_t at = 0; at < sample.inputs.size(); ++at) {
    const at::Tensor& input = sample.inputs[at];
    const std::string name = sample.inputs.size() == 1 ? "input" : "inputs." + std::to_string(at);
    if (!input.defined()) {
      graph.inputs.push_back({name, c10::IValue()});
      inputs_.emplace_back();
      continue;
    }
    // No leaf, so that it may be written to, and with a gradient, so that it is seen what is done about that.
    const at::AutoGradMode grad(true);
    const at::Tensor leaf = input.detach().clone();
    if (leaf.is_floating_point() || leaf.is_complex()) leaf.requires_grad_(true);
    inputs_.push_back(leaf.clone());
    autograd_.trust(inputs_.back());
    graph.inputs.push_back({name, give(name, inputs_.back())});
  }
  recorder_of_thread() = this;
}

Recorder::~Recorder() { recorder_of_thread() = nullptr; }

Recorder* Recorder::current() {
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  return keys.included_.has(kRecord) && !keys.excluded_.has(kRecord) ? recorder_of_thread() : nullptr;
}

void Recorder::refuse(const std::string& what) {
  if (!refusal_) refusal_ = what;
  throw Error(*refusal_);
}

ValueId Recorder::add_value(const std::string& name, const at::Tensor& tensor) {
  recording_.graph.values.push_back(names_.give(name));
  const auto value = static_cast<ValueId>(recording_.graph.values.size()) - 1;
  recording_.graph.recorded[value] = {tensor.sizes().vec(), tensor.scalar_type()};
  if (tensor.layout() == at::kStrided)
    recording_.placements.emplace(value, Recording::Placement{tensor.strides().vec(), tensor.device()});
  return value;
}

Recorder::Known& Recorder::know(const at::Tensor& tensor, ValueId value) {
  const Known known{c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()), value,
                    tensor.requires_grad(), std::make_shared<bool>(false)};
  return known_.insert_or_assign(tensor.unsafeGetTensorImpl(), known).first->second;
}

ValueId Recorder::give(const std::string& name, const at::Tensor& tensor) {
  const ValueId value = add_value(name, tensor);
  know(tensor, value);
  return value;
}

ValueId Recorder::constant(const at::Tensor& tensor, const std::string& user) {
  if (tensor.grad_fn()) {
    refuse(user + " is given a tensor, " + text_of(tensor) +
           ", that was computed by something that is no operator (" + tensor.grad_fn()->name() +
           "), such as a custom autograd function");
  }
  const ValueId value = give("constant", tensor);
  saved_.watch(tensor);
  recording_.constants[value] = {tensor, tensor.detach().clone(), user};
  return value;
}

std::variant<c10::IValue, ValueId> Recorder::tensor_argument(const at::Tensor& tensor,
                                                             const std::string& user) {
  if (!tensor.defined()) return c10::IValue(tensor);
  const auto found = known_.find(tensor.unsafeGetTensorImpl());
  if (found != known_.end()) return found->second.value;
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return c10::IValue(tensor.item());
  return constant(tensor, user);
}

Argument Recorder::argument(const c10::IValue& value, const std::string& user) {
  if (value.isTensor()) {
    const auto is = tensor_argument(value.toTensor(), user);
    if (const auto* known = std::get_if<ValueId>(&is)) return {*known};
    return {std::get<c10::IValue>(is)};
  }
  bool has_tensors = value.isTensorList();
  if (!has_tensors && value.isList()) {
    const auto element = value.toList().elementType();
    has_tensors =
        element->kind() == c10::TypeKind::TensorType || element->kind() == c10::TypeKind::OptionalType;
  }
  if (!has_tensors) {
    if (value.isGenerator()) saved_.before_use(value.toGenerator());
    return {value.isList() ? value.deepcopy() : value};
  }
  Argument::List list;
  const auto items = value.toListRef();
  list.items.reserve(items.size());
  for (const c10::IValue& item : items) {
    list.items.push_back(item.isTensor() ? tensor_argument(item.toTensor(), user)
                                         : std::variant<c10::IValue, ValueId>(item));
  }
  return {std::move(list)};
}

void Recorder::call(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const c10::impl::ExcludeDispatchKeyGuard pause(kRecord);
  if (refusal_) throw Error(*refusal_);
  try {
    call_checked(op, stack);
  } catch (const Error& error) {
    refuse(error.what());
  }
}

/// Throws where an operator that gives data to the program must not; otherwise, whether it is such a one.
bool Recorder::reads_data(const c10::FunctionSchema& schema, const torch::jit::Stack& stack) {
  if (gives_metadata(schema)) return true;
  if (!gives_data_to_program(schema)) return false;
  if (schema.name() == "aten::equal") {
    const at::Tensor& a = torch::jit::peek(stack, 0, 2).toTensor();
    const at::Tensor& b = torch::jit::peek(stack, 1, 2).toTensor();
    if (a.is_same(b) || a.sizes() != b.sizes()) return true;  // whatever is in them
    refuse(
        "aten::equal compares the contents of two tensors, and what the program does then depends on the "
        "data. "
        "(torch::nn::MultiheadAttention does so where query and key are different tensors of the same "
        "sizes.)");
  }
  refuse(schema.name() +
         " gives the program what is in a tensor: what it does with that would be fixed in the graph. Keep "
         "it a tensor");
}

void Recorder::before_call(const c10::FunctionSchema& schema, const c10::Argument& argument,
                           const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  autograd_.check(tensor);
  const auto found = known_.find(tensor.unsafeGetTensorImpl());
  if (found == known_.end()) {
    saved_.watch(tensor);
    if (is_written(schema, argument)) saved_.before_write(tensor);
    return;
  }
  const Known& known = found->second;
  if (tensor.requires_grad() && tensor.is_leaf() && !known.required_grad) {
    refuse(schema.name() + " is given a tensor on which the forward has called requires_grad_");
  }
  if (*known.is_unwritten) {
    if (overwrites(schema, argument)) {
      *known.is_unwritten = false;
    } else if (!aliases(argument) || argument.alias_info()->isWrite()) {
      // The program itself has filled it in, as torch::tensor does.
      known_.erase(found);
      constant(tensor, schema.name());
    }
  }
  if (!is_written(schema, argument)) return;
  saved_.before_write(tensor);
  if (tensor.has_storage() && hidden_aliases_.contains(tensor.storage().unsafeGetStorageImpl())) {
    refuse(schema.name() +
           " writes to memory that an operator has shared with its result without declaring it: write to a "
           "clone");
  }
}

void Recorder::call_checked(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string& name = schema.name();
  if (torch::autograd::get_current_node()) {
    refuse(name + " is called by a backward pass inside of the forward, which a graph cannot have");
  }
  if (c10::InferenceMode::is_enabled()) refuse(name + " is called in inference mode: use torch::NoGradGuard");
  if (reads_data(schema, stack)) {
    op.callBoxed(stack);
    return;
  }
  GraphNode node;
  node.op = name;
  node.overload = schema.overload_name();
  node.modes = modes_.now();
  const Taken taken = take_arguments(schema, stack, node);
  if (op.hasTag(at::Tag::inplace_view)) {
    for_each_use(node, [&](ValueId value) {
      if (value >= first_made_here_ && !recording_.constants.contains(value)) return;
      refuse(name + " gives a parameter, buffer or constant another shape, which a graph cannot");
    });
  }
  if (taken.has_grad &&
      c10::impl::tls_local_dispatch_key_set().excluded_.has(c10::DispatchKey::AutogradCPU)) {
    refuse(name + " is called with autograd excluded: use torch::NoGradGuard");
  }
  op.callBoxed(stack);
  add_outputs(schema, stack, taken, node);
  recording_.graph.nodes.push_back(std::move(node));
}

Recorder::Taken Recorder::take_arguments(const c10::FunctionSchema& schema, const torch::jit::Stack& stack,
                                         GraphNode& node) {
  const std::vector<c10::Argument>& wanted = schema.arguments();
  Taken taken;
  for (std::size_t at = 0; at < wanted.size(); ++at) {
    const c10::IValue& value = torch::jit::peek(stack, at, wanted.size());
    for_each_tensor(value, [&](const at::Tensor& tensor) { before_call(schema, wanted[at], tensor); });
    node.arguments.push_back(argument(value, schema.name()));
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      taken.has_grad |= tensor.requires_grad();
      if (tensor.has_storage()) taken.storages.insert(tensor.storage().unsafeGetStorageImpl());
      const auto found = known_.find(tensor.unsafeGetTensorImpl());
      if (aliases(wanted[at]) && !taken.is_unwritten && found != known_.end()) {
        taken.is_unwritten = found->second.is_unwritten;
      }
    });
  }
  return taken;
}

void Recorder::add_outputs(const c10::FunctionSchema& schema, const torch::jit::Stack& stack,
                           const Taken& taken, GraphNode& node) {
  const std::size_t count = schema.returns().size();
  for (std::size_t at = 0; at < count; ++at) {
    std::vector<ValueId>& values = node.outputs.emplace_back();
    const c10::IValue& output = torch::jit::peek(stack, at, count);
    if (!output.isTensor() && !output.isTensorList()) {
      refuse(schema.name() + " gives something that is neither a tensor nor a list of them");
    }
    const bool is_alias = aliases(schema.returns()[at]);
    for_each_tensor(output, [&](const at::Tensor& tensor) {
      if (!tensor.defined()) {
        values.push_back(-1);
        return;
      }
      autograd_.trust(tensor);
      if (!is_alias && tensor.has_storage() &&
          taken.storages.contains(tensor.storage().unsafeGetStorageImpl())) {
        if (known_.contains(
                tensor.unsafeGetTensorImpl())) {  // what it was given, as dropout does in evaluation
          values.push_back(-1);
          return;
        }
        hidden_aliases_.emplace(tensor.storage().unsafeGetStorageImpl(),
                                tensor.storage().getWeakStorageImpl());
      }
      const ValueId value = add_value(short_name(schema.name()), tensor);
      Known& known = know(tensor, value);
      *known.is_unwritten = makes_unwritten(schema);
      if (is_alias && taken.is_unwritten) known.is_unwritten = taken.is_unwritten;
      values.push_back(value);
    });
  }
}

void Recorder::add_data(const at::Tensor& of, const at::Tensor& data) {
  const c10::impl::ExcludeDispatchKeyGuard pause(kRecord);
  GraphNode node;
  node.op = kDataOf;
  node.modes = modes_.now();
  node.arguments.push_back(argument(of, node.op));
  const auto source = known_.find(of.unsafeGetTensorImpl());
  if (source == known_.end()) return;  // a number
  const auto memory = source->second.is_unwritten;
  node.outputs = {{add_value("data", data)}};
  know(data, node.outputs[0][0]).is_unwritten = memory;
  recording_.graph.nodes.push_back(std::move(node));
}

void Recorder::add_split() {
  GraphNode node;
  node.op = kPipeSplit;
  node.modes = modes_.now();
  recording_.graph.nodes.push_back(std::move(node));
}

Recording Recorder::finish(const Values& outputs) {
  if (refusal_) throw Error(*refusal_);
  Graph& graph = recording_.graph;
  for (std::size_t at = 0; at < outputs.size(); ++at) {
    const std::string name = outputs.size() == 1 ? "output" : "outputs." + std::to_string(at);
    if (!outputs[at].defined()) {
      graph.outputs.push_back({name, c10::IValue()});
      continue;
    }
    autograd_.check(outputs[at]);
    ValueId value = std::get<ValueId>(argument(outputs[at], "the end of the forward").is);
    if (value < first_made_here_ || recording_.constants.contains(value)) {  // which no stage would give
      GraphNode node;
      node.op = "aten::alias";
      node.arguments = {{value}};
      value = add_value("alias", outputs[at]);
      node.outputs = {{value}};
      graph.nodes.push_back(std::move(node));
    }
    graph.outputs.push_back({name, value});
  }
  autograd_.check_hooks();
  return std::move(recording_);
}

}  // namespace pipewright
