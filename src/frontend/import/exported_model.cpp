#include "pipewright/frontend/exported_model.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <limits>
#include <tuple>
#include <utility>

#include "frontend/archive/archive.h"
#include "frontend/archive/geometry.h"
#include "frontend/import/graph_reader.h"
#include "frontend/schema/schema_numbers.h"

namespace pipewright {
namespace {

constexpr std::size_t kLongestText = 1 << 30;
constexpr std::int64_t kSchema = 8;
constexpr const char* kModel = "models/model.json";
constexpr const char* kWeights = "data/weights/";
constexpr const char* kWeightsConfig = "data/weights/model_weights_config.json";
constexpr const char* kConstants = "data/constants/";
constexpr const char* kConstantsConfig = "data/constants/model_constants_config.json";

Json parse(const Archive& archive, const std::string& record) {
  Json parsed = Json::parse(archive.text(record, kLongestText), nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) throw ParseError("its record '" + record + "' is not JSON");
  return parsed;
}

std::vector<std::int64_t> integers(const Json& sizes) {
  std::vector<std::int64_t> all;
  for (const Json& size : sizes) all.push_back(integer_of_json(field(size, "as_int")));
  return all;
}

}  // namespace

class ExportedModel::Impl {
 public:
  explicit Impl(const std::filesystem::path& file) : archive_(file) {
    if (!archive_.has(kModel)) throw Error("it has no model: was it written by torch.export.save?");
    const Json model = parse(archive_, kModel);
    const Json& version = field(model, "schema_version");
    if (integer_of_json(field(version, "major")) != kSchema) {
      throw Error("it has schema version " + version.dump() + ", and only " + std::to_string(kSchema) +
                  " is known: export it again with another version of PyTorch");
    }
    weights_ = field(parse(archive_, kWeightsConfig), "config");
    std::map<std::string, at::Tensor> constants;
    if (archive_.has(kConstantsConfig)) {
      const Json config = field(parse(archive_, kConstantsConfig), "config");
      Tensors tensors;
      for (const auto& [name, entry] : config.items()) {
        if (field(entry, "tensor_meta").is_null()) continue;  // no tensor; whoever uses it is told
        constants[name] = tensor_of(name, entry, kConstants, tensors);
      }
    }
    graph_ = read_graph(model, constants);
    merge_tied();
  }

  const Graph& graph() const { return graph_; }

  std::map<std::string, at::Tensor> load(const Graph& of) const {
    std::map<std::string, at::Tensor> state;
    Tensors tensors;
    for (const auto* names : {&of.parameters, &of.buffers, &of.borrowed_buffers}) {
      for (const auto& [name, value] : *names) {
        const auto entry = weights_.find(name.substr(0, name.find(kCopy)));
        if (entry == weights_.end()) throw Error("it has no tensor '" + name + "'");
        state[name] = tensor_of(name, *entry, kWeights, tensors);
      }
    }
    return state;
  }

 private:
  /// By record and geometry: names of the same are of one tensor.
  using Tensors = std::map<std::string, at::Tensor>;

  at::Tensor tensor_of(const std::string& name, const Json& entry, const char* folder,
                       Tensors& tensors) const {
    if (field(entry, "use_pickle") == true)
      throw Error("the tensor '" + name + "' is pickled, which is not supported");
    const Json& meta = field(entry, "tensor_meta");
    const std::string path = text_field(entry, "path_name");
    at::Tensor& tensor = tensors[path + meta.dump()];
    if (tensor.defined()) return tensor;
    if (layout_of(field(meta, "layout")) != c10::kStrided) throw Error("the tensor '" + name + "' is sparse");
    const Archive::Bytes bytes = archive_.map(folder + path);
    const c10::ScalarType dtype = scalar_type_of(field(meta, "dtype"));
    const std::vector<std::int64_t> sizes = integers(field(meta, "sizes"));
    const std::vector<std::int64_t> strides = integers(field(meta, "strides"));
    const std::int64_t offset = integer_of_json(field(field(meta, "storage_offset"), "as_int"));
    if (!fits(sizes, strides, offset, bytes.size / c10::elementSize(dtype)))
      throw ParseError("the tensor '" + name + "' does not fit into its record");
    auto* begin = static_cast<std::byte*>(bytes.begin.get()) +
                  static_cast<std::size_t>(offset) * c10::elementSize(dtype);
    tensor = at::from_blob(begin, sizes, strides, [held = bytes.begin](void*) {}, at::TensorOptions(dtype));
    const bool trains = field(entry, "is_param") == true && field(meta, "requires_grad") == true;
    tensor.set_requires_grad(trains);
    return tensor;
  }

  /// Names of one tensor become names of one value.
  void merge_tied() {
    std::map<std::string, ValueId> first;
    std::map<ValueId, ValueId> same;
    for (auto* names : {&graph_.parameters, &graph_.buffers}) {
      for (auto& [name, value] : *names) {
        const auto entry = weights_.find(name);
        if (entry == weights_.end()) throw ParseError("it has no tensor '" + name + "'");
        const auto [found, is_new] =
            first.emplace(text_field(*entry, "path_name") + field(*entry, "tensor_meta").dump(), value);
        if (!is_new) same[std::exchange(value, found->second)] = found->second;
      }
    }
    if (same.empty()) return;
    const auto replace = [&](ValueId& value) {
      if (const auto found = same.find(value); found != same.end()) value = found->second;
    };
    for (GraphNode& node : graph_.nodes) {
      for (Argument& argument : node.arguments) {
        if (auto* value = std::get_if<ValueId>(&argument.is)) replace(*value);
        if (auto* list = std::get_if<Argument::List>(&argument.is)) {
          for (auto& item : list->items) {
            if (auto* value = std::get_if<ValueId>(&item)) replace(*value);
          }
        }
      }
    }
    for (Graph::Port& port : graph_.outputs) {
      if (auto* value = std::get_if<ValueId>(&port.is)) replace(*value);
    }
  }

  Archive archive_;
  Json weights_;
  Graph graph_;
};

ExportedModel::ExportedModel(const std::filesystem::path& file) {
  try {
    impl_ = std::make_unique<Impl>(file);
  } catch (const ParseError& error) {
    throw ParseError(file.string() + ": " + error.what());
  } catch (const Error& error) {
    throw Error(file.string() + ": " + error.what());
  }
}
ExportedModel::~ExportedModel() = default;
ExportedModel::ExportedModel(ExportedModel&&) noexcept = default;
ExportedModel& ExportedModel::operator=(ExportedModel&&) noexcept = default;

const Graph& ExportedModel::graph() const { return impl_->graph(); }

std::map<std::string, at::Tensor> ExportedModel::load(const Graph& of) const { return impl_->load(of); }

}  // namespace pipewright
