#include "pipewright/frontend/exported_model.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <limits>
#include <tuple>
#include <utility>

#include "frontend/archive/archive.h"
#include "frontend/archive/geometry.h"
#include "frontend/archive/with_gradient.h"
#include "frontend/import/graph_reader.h"
#include "frontend/schema/schema_numbers.h"

namespace pipewright {
namespace {

constexpr std::size_t kLongestText = 1 << 30;
constexpr const char* kModel = "models/model.json";
constexpr const char* kWeights = "data/weights/";
constexpr const char* kWeightsConfig = "data/weights/model_weights_config.json";
constexpr const char* kSampleInputs = "data/sample_inputs/model.pt";
constexpr const char* kConstants = "data/constants/";
constexpr const char* kConstantsConfig = "data/constants/model_constants_config.json";

Json parse(const Archive& archive, const std::string& record) {
  try {
    return parse_json(archive.text(record, kLongestText));
  } catch (const ParseError& error) {
    throw ParseError("its record '" + record + "' cannot be read: " + error.what());
  }
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
    Json model = parse(archive_, kModel);
    const Json& version = field(model, "schema_version");
    if (integer_of_json(field(version, "major")) != kSchemaMajor) {
      throw Error("it has schema version " + version.dump() + ", and only " + std::to_string(kSchemaMajor) +
                  " is known: export it again with another version of PyTorch");
    }
    weights_ = field(parse(archive_, kWeightsConfig), "config");
    std::map<std::string, at::Tensor> constants;
    if (archive_.has(kConstantsConfig)) {
      constants_ = field(parse(archive_, kConstantsConfig), "config");
      Tensors tensors;
      for (const auto& [name, entry] : constants_.items()) {
        if (field(entry, "tensor_meta").is_null()) continue;  // no tensor; whoever uses it is told
        constants[name] = tensor_of(name, entry, kConstants, archive_, tensors);
      }
    }
    ReadProgram read = read_graph(model, constants);
    graph_ = std::move(read.graph);
    description_ = std::move(read.description);
    merge_tied();
    model.erase("graph_module");
    description_.program = std::move(model);
    if (archive_.has(kSampleInputs)) description_.sample_inputs = archive_.map(kSampleInputs);
  }

  const Graph& graph() const { return graph_; }
  const ProgramDescription& description() const { return description_; }

  std::map<std::string, at::Tensor> load(const Graph& of) const {
    std::map<std::string, at::Tensor> state;
    Tensors tensors;
    // Stages, and replicas of them, change theirs each by itself.
    const std::unique_ptr<Archive> own = archive_.again();
    for (const auto* names : {&of.parameters, &of.buffers, &of.borrowed_buffers}) {
      for (const auto& [name, value] : *names) {
        const auto [entry, folder] = entry_of(name.substr(0, name.find(kCopy)));
        state[name] = tensor_of(name, entry, folder, *own, tensors);
      }
    }
    return state;
  }

 private:
  /// By record and geometry: names of the same are of one tensor.
  using Tensors = std::map<std::string, at::Tensor>;

  /// Where a parameter or buffer is described, and the folder of its record: those that are not in a state
  /// dict are with the constants.
  std::pair<const Json&, const char*> entry_of(const std::string& name) const {
    if (const auto found = weights_.find(name); found != weights_.end()) return {*found, kWeights};
    if (graph_.non_persistent_buffers.contains(name)) {
      if (const auto found = constants_.find(name); found != constants_.end()) return {*found, kConstants};
    }
    throw ParseError("it has no tensor '" + name + "'");
  }

  static at::Tensor tensor_of(const std::string& name, const Json& entry, const char* folder,
                              const Archive& archive, Tensors& tensors) {
    if (field(entry, "use_pickle") == true)
      throw Error("the tensor '" + name + "' is pickled, which is not supported");
    const Json& meta = field(entry, "tensor_meta");
    const std::string path = text_field(entry, "path_name");
    at::Tensor& tensor = tensors[folder + path + meta.dump()];
    if (tensor.defined()) return tensor;
    if (layout_of(field(meta, "layout")) != c10::kStrided) throw Error("the tensor '" + name + "' is sparse");
    const Archive::Bytes bytes = archive.map(folder + path);
    const c10::ScalarType dtype = scalar_type_of(field(meta, "dtype"));
    const std::vector<std::int64_t> sizes = integers(field(meta, "sizes"));
    const std::vector<std::int64_t> strides = integers(field(meta, "strides"));
    const std::int64_t offset = integer_of_json(field(field(meta, "storage_offset"), "as_int"));
    if (!fits(sizes, strides, offset, bytes.size / c10::elementSize(dtype)))
      throw ParseError("the tensor '" + name + "' does not fit into its record");
    auto* begin = static_cast<std::byte*>(bytes.begin.get()) +
                  static_cast<std::size_t>(offset) * c10::elementSize(dtype);
    const bool trains = field(entry, "is_param") == true && field(meta, "requires_grad") == true;
    tensor =
        with_gradient(at::from_blob(
                          begin, sizes, strides, [held = bytes.begin](void*) {}, at::TensorOptions(dtype)),
                      trains, name);
    return tensor;
  }

  /// Names of one tensor become names of one value.
  void merge_tied() {
    std::map<std::string, ValueId> first;
    std::map<ValueId, ValueId> same;
    for (auto* names : {&graph_.parameters, &graph_.buffers}) {
      for (auto& [name, value] : *names) {
        const auto [entry, folder] = entry_of(name);
        const auto [found, is_new] = first.emplace(
            folder + text_field(entry, "path_name") + field(entry, "tensor_meta").dump(), value);
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
  Json constants_ = Json::object();
  Graph graph_;
  ProgramDescription description_;
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

const ProgramDescription& ExportedModel::description() const { return impl_->description(); }

std::map<std::string, at::Tensor> ExportedModel::load(const Graph& of) const { return impl_->load(of); }

}  // namespace pipewright
