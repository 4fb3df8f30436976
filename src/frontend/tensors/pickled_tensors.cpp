#include "frontend/tensors/pickled_tensors.h"

#include <ATen/core/Dict.h>
#include <ATen/ops/empty.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/pickler.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

#include "frontend/archive/archive.h"
#include "frontend/archive/archive_writer.h"
#include "frontend/archive/geometry.h"
#include "frontend/archive/with_gradient.h"
#include "frontend/tensors/pickle.h"
#include "pipewright/base/error.h"

namespace pipewright {
namespace {

constexpr std::size_t kLongestPickle = std::size_t{1} << 28;
constexpr std::size_t kMostEntries = 10'000'000;
constexpr int kDeepestEntry = 64;

struct PickledType {
  c10::ScalarType dtype;
  std::string_view storage;  // the class of its storage; none: only known by the type's own name
  std::string_view name;
};
constexpr std::array kPickledTypes = {PickledType{at::kDouble, "DoubleStorage", "float64"},
                                      PickledType{at::kFloat, "FloatStorage", "float32"},
                                      PickledType{at::kHalf, "HalfStorage", "float16"},
                                      PickledType{at::kBFloat16, "BFloat16Storage", "bfloat16"},
                                      PickledType{at::kLong, "LongStorage", "int64"},
                                      PickledType{at::kInt, "IntStorage", "int32"},
                                      PickledType{at::kShort, "ShortStorage", "int16"},
                                      PickledType{at::kChar, "CharStorage", "int8"},
                                      PickledType{at::kByte, "ByteStorage", "uint8"},
                                      PickledType{at::kBool, "BoolStorage", "bool"},
                                      PickledType{at::kComplexFloat, "ComplexFloatStorage", "complex64"},
                                      PickledType{at::kComplexDouble, "ComplexDoubleStorage", "complex128"},
                                      PickledType{at::kUInt16, "", "uint16"},
                                      PickledType{at::kUInt32, "", "uint32"},
                                      PickledType{at::kUInt64, "", "uint64"},
                                      PickledType{at::kFloat8_e4m3fn, "", "float8_e4m3fn"},
                                      PickledType{at::kFloat8_e5m2, "", "float8_e5m2"}};

/// The tensors that a pickle describes, with storages from the archive.
class TensorUnpickler {
 public:
  TensorUnpickler(const Archive& archive, const Pickle& pickle) : archive_(archive), pickle_(pickle) {}

  NamedTensors read() {
    const Node* root = node_of(pickle_.root);
    if (!root || !is_dictionary(*root)) throw Error("it holds no dictionary of tensors");
    add(pickle_.root, "", 0);
    return std::move(tensors_);
  }

 private:
  using Node = Pickle::Node;
  using Value = Pickle::Value;
  using Kind = Node::Kind;

  const Node* node_of(const Value& value) const {
    const auto* reference = std::get_if<Pickle::Reference>(&value);
    return reference ? &pickle_.nodes[reference->node] : nullptr;
  }

  static bool is_call(const Node& node, std::string_view module, std::string_view name) {
    return node.kind == Kind::Call && node.callee.module == module && node.callee.name == name;
  }

  static bool is_dictionary(const Node& node) {
    return node.kind == Kind::Dictionary || is_call(node, "collections", "OrderedDict");
  }

  void add(const Value& value, const std::string& name, int depth) {
    if (depth > kDeepestEntry || ++entries_ > kMostEntries) throw ParseError("it has too many entries");
    const auto inside = [&](const std::string& key) { return name.empty() ? key : name + "." + key; };
    const Node* node = node_of(value);
    if (node && is_dictionary(*node)) {
      for (std::size_t at = 0; at + 1 < node->items.size(); at += 2)
        add(node->items[at + 1], inside(key_text(node->items[at], name)), depth + 1);
    } else if (node && (node->kind == Kind::List || node->kind == Kind::Tuple)) {
      for (std::size_t at = 0; at < node->items.size(); ++at)
        add(node->items[at], inside(std::to_string(at)), depth + 1);
    } else if (node && node->kind == Kind::Call) {
      if (!tensors_.emplace(name, tensor_of(*node, name)).second)
        throw Error("it has several tensors '" + name + "'");
    } else {
      throw Error("'" + name + "' is no tensor");
    }
  }

  static std::string key_text(const Value& key, const std::string& where) {
    if (const auto* text = std::get_if<std::string_view>(&key)) return std::string(*text);
    if (const auto* number = std::get_if<std::int64_t>(&key)) return std::to_string(*number);
    throw Error("a key in '" + where + "' is neither text nor a whole number");
  }

  const std::vector<Value>& arguments_of(const Node& call) const {
    return pickle_.nodes[call.arguments].items;
  }

  at::Tensor tensor_of(const Node& call, const std::string& name) {
    const std::vector<Value>& arguments = arguments_of(call);
    if (is_call(call, "torch._utils", "_rebuild_parameter") ||
        is_call(call, "torch._utils", "_rebuild_parameter_with_state")) {
      return with_gradient(tensor_of(nested_call(arguments, 0, name), name), boolean(arguments, 1, name),
                           name);
    }
    const bool has_type = is_call(call, "torch._utils", "_rebuild_tensor_v3");
    if (!has_type && !is_call(call, "torch._utils", "_rebuild_tensor_v2"))
      throw Error("'" + name + "' is a " + call.callee.text() + ", and no plain tensor");
    const std::size_t extras = has_type ? 7 : 6;
    if (const Node* more = arguments.size() > extras ? node_of(arguments[extras]) : nullptr;
        more && !more->items.empty()) {
      throw Error("the tensor '" + name + "' is conjugated or negated: only plain ones can be read");
    }
    const Storage& storage = storage_of(arguments, name);
    const std::optional<c10::ScalarType> dtype =
        has_type ? type_named(arguments, 6) : std::optional(storage.dtype);
    if (!dtype) throw Error("the tensor '" + name + "' has a type that is not known");
    const std::vector<std::int64_t> sizes = integers_at(arguments, 2, name);
    const std::vector<std::int64_t> strides = integers_at(arguments, 3, name);
    const auto* offset = std::get_if<std::int64_t>(&arguments[1]);
    if (!offset || !fits(sizes, strides, *offset, storage.bytes.nbytes() / c10::elementSize(*dtype)))
      throw ParseError("the tensor '" + name + "' does not fit into its record");
    const at::Tensor tensor = at::empty({0}, at::TensorOptions(*dtype));
    tensor.set_(storage.bytes, *offset, sizes, strides);
    return with_gradient(tensor, boolean(arguments, 4, name), name);
  }

  const Node& nested_call(const std::vector<Value>& arguments, std::size_t at,
                          const std::string& name) const {
    const Node* node = at < arguments.size() ? node_of(arguments[at]) : nullptr;
    // One level, so that a parameter cannot be made of itself.
    if (!node || node->kind != Kind::Call || !node->callee.name.starts_with("_rebuild_tensor_v"))
      malformed(name);
    return *node;
  }

  static bool boolean(const std::vector<Value>& arguments, std::size_t at, const std::string& name) {
    const auto* value = at < arguments.size() ? std::get_if<bool>(&arguments[at]) : nullptr;
    if (!value) malformed(name);
    return *value;
  }

  std::vector<std::int64_t> integers_at(const std::vector<Value>& arguments, std::size_t at,
                                        const std::string& name) const {
    const Node* tuple = at < arguments.size() ? node_of(arguments[at]) : nullptr;
    if (!tuple || tuple->kind != Kind::Tuple) malformed(name);
    std::vector<std::int64_t> numbers;
    numbers.reserve(tuple->items.size());
    for (const Value& item : tuple->items) {
      const auto* number = std::get_if<std::int64_t>(&item);
      if (!number) malformed(name);
      numbers.push_back(*number);
    }
    return numbers;
  }

  [[noreturn]] static void malformed(const std::string& name) {
    throw ParseError("the description of the tensor '" + name + "' is damaged");
  }

  static std::optional<c10::ScalarType> type_named(const std::vector<Value>& arguments, std::size_t at) {
    const auto* name = at < arguments.size() ? std::get_if<Pickle::Global>(&arguments[at]) : nullptr;
    for (const PickledType& type : kPickledTypes) {
      if (name && name->module == "torch" && name->name == type.name) return type.dtype;
    }
    return std::nullopt;
  }

  struct Storage {
    c10::Storage bytes;
    c10::ScalarType dtype;
  };

  /// `('storage', class, key, device, elements)`; the device does not matter.
  const Storage& storage_of(const std::vector<Value>& arguments, const std::string& name) {
    const Node* persistent = arguments.size() > 3 ? node_of(arguments[0]) : nullptr;
    if (!persistent || persistent->kind != Kind::Persistent) malformed(name);
    const Node* identity = node_of(persistent->items[0]);
    if (!identity || identity->kind != Kind::Tuple || identity->items.size() != 5) malformed(name);
    const auto* type = std::get_if<Pickle::Global>(&identity->items[1]);
    const auto* key = std::get_if<std::string_view>(&identity->items[2]);
    const auto* elements = std::get_if<std::int64_t>(&identity->items[4]);
    if (!type || !key || !elements || *elements < 0) malformed(name);
    const auto [found, is_new] = storages_.try_emplace(std::string(*key));
    if (is_new) found->second = read_storage(*type, found->first, static_cast<std::size_t>(*elements), name);
    return found->second;
  }

  Storage read_storage(const Pickle::Global& type, const std::string& key, std::size_t elements,
                       const std::string& name) const {
    c10::ScalarType dtype = at::kByte;  // of untyped ones
    if (type.module != "torch.storage" || type.name != "UntypedStorage") {
      const auto known = std::ranges::find_if(kPickledTypes, [&](const PickledType& each) {
        return type.module == "torch" && !each.storage.empty() && each.storage == type.name;
      });
      if (known == kPickledTypes.end())
        throw Error("the tensor '" + name + "' has a type that is not known: " + type.text());
      dtype = known->dtype;
    }
    const Archive::Bytes bytes = archive_.map("data/" + key);
    if (elements > bytes.size / c10::elementSize(dtype))
      throw ParseError("the tensor '" + name + "' does not fit into its record");
    auto* held = new std::shared_ptr<void>(bytes.begin);
    c10::DataPtr data(
        bytes.begin.get(), held, [](void* it) { delete static_cast<std::shared_ptr<void>*>(it); }, at::kCPU);
    return {c10::Storage(c10::Storage::use_byte_size_t(), elements * c10::elementSize(dtype), std::move(data),
                         /*allocator=*/nullptr, /*resizable=*/false),
            dtype};
  }

  const Archive& archive_;
  const Pickle& pickle_;
  std::map<std::string, Storage> storages_;
  NamedTensors tensors_;
  std::size_t entries_ = 0;
};

/// Tensors on the CPU that share memory where the ones given do.
class CpuCopies {
 public:
  at::Tensor operator()(const at::Tensor& tensor) {
    if (tensor.is_cpu()) return tensor.detach();
    at::Tensor& all = copies_[tensor.storage().unsafeGetStorageImpl()];
    if (!all.defined()) {
      const at::Tensor whole = at::empty({0}, tensor.options().dtype(at::kByte).requires_grad(false));
      whole.set_(tensor.storage(), 0, {static_cast<std::int64_t>(tensor.storage().nbytes())}, {1});
      all = whole.cpu();
    }
    const at::Tensor copy = at::empty({0}, at::TensorOptions(tensor.scalar_type()));
    return copy.set_(all.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
  }

 private:
  std::map<const c10::StorageImpl*, at::Tensor> copies_;
};

void check_can_be_pickled(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined()) throw Error("there is no tensor '" + name + "'");
  const bool known = std::ranges::any_of(kPickledTypes, [&](const PickledType& type) {
    return type.dtype == tensor.scalar_type() && !type.storage.empty();
  });
  if (!known || tensor.layout() != c10::kStrided || tensor.is_quantized() || tensor.is_conj() ||
      tensor.is_neg()) {
    throw Error("the tensor '" + name + "' is of a kind (" + tensor.toString() +
                ") that cannot be written: only plain ones can");
  }
}

}  // namespace

NamedTensors read_pickled_tensors(const std::filesystem::path& file) {
  const Archive archive(file);
  if (!archive.has("data.pkl")) throw Error("it was not written by torch.save");
  if (archive.has("byteorder") && archive.text("byteorder", 16) != "little")
    throw Error("it was written on a big-endian machine");
  const std::string bytes = archive.text("data.pkl", kLongestPickle);
  const Pickle pickle = read_pickle(bytes);
  return TensorUnpickler(archive, pickle).read();
}

void write_pickled_tensors(const std::filesystem::path& file, const NamedTensors& tensors) {
  const c10::Dict<std::string, at::Tensor> dictionary;
  CpuCopies on_cpu;
  for (const auto& [name, tensor] : tensors) {
    check_can_be_pickled(name, tensor);
    dictionary.insert(name, on_cpu(tensor));
  }
  std::string pickle;
  int next = 0;
  torch::jit::Pickler pickler([&](const char* bytes, std::size_t size) { pickle.append(bytes, size); },
                              /*tensor_table=*/nullptr, /*type_renamer=*/nullptr,
                              /*memoized_class_types=*/nullptr,
                              /*get_tensor_id=*/[&](const at::Tensor&) { return std::to_string(next++); },
                              /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(dictionary);
  pickler.stop();
  write_archive(file, [&](caffe2::serialize::PyTorchStreamWriter& writer) {
    writer.writeRecord("data.pkl", pickle.data(), pickle.size());
    const std::string order = "little";
    writer.writeRecord("byteorder", order.data(), order.size());
    // In the order that the pickle names them.
    for (std::size_t at = 0; at < pickler.tensorData().size(); ++at) {
      const c10::Storage& storage = pickler.tensorData()[at].storage();
      writer.writeRecord("data/" + std::to_string(at), storage.data(), storage.nbytes());
    }
  });
}

}  // namespace pipewright
