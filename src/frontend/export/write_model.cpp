#include "pipewright/frontend/write_model.h"

#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>

#include <functional>
#include <set>
#include <utility>

#include "frontend/archive/archive_writer.h"
#include "frontend/export/payloads.h"
#include "frontend/export/program_writer.h"
#include "frontend/export/value_names.h"
#include "frontend/graph/uses.h"
#include "frontend/schema/schema_numbers.h"

namespace pipewright {
namespace {

constexpr std::uint64_t kArchiveVersion = 6;  // of archives with a program

/// What a graph comes from.
struct Origin {
  const ProgramDescription& description;
  /// A parameter or buffer as it was.
  std::function<at::Tensor(const std::string& name)> tensor;
};

/// Tensors for the graph's state.
class StateWriter {
 public:
  StateWriter(const Origin& origin, const Graph& graph, const NamedTensors& state)
      : origin_(origin), graph_(graph), state_(state) {
    for (const GraphNode& node : graph.nodes)
      for_each_use(node, [this](ValueId value) { used_.insert(value); });
    for (const Graph::Port& port : graph.outputs) {
      if (const auto* value = std::get_if<ValueId>(&port.is)) used_.insert(*value);
    }
  }

  Payloads weights() {
    Payloads weights("data/weights/", "weight_");
    add(graph_.parameters, /*are_parameters=*/true, weights);
    add(buffers(/*persistent=*/true), /*are_parameters=*/false, weights);
    return weights;
  }

  Payloads constants() {
    Payloads constants("data/constants/", "tensor_");
    for (const auto& [value, tensor] : graph_.constants) {
      constants.add({constant_name(value)}, tensor, /*is_parameter=*/false, /*requires_grad=*/false);
    }
    add(buffers(/*persistent=*/false), /*are_parameters=*/false, constants);
    return constants;
  }

 private:
  std::map<std::string, ValueId> buffers(bool persistent) const {
    std::map<std::string, ValueId> some;
    for (const auto* named : {&graph_.buffers, &graph_.borrowed_buffers}) {
      for (const auto& [name, value] : *named) {
        if (graph_.non_persistent_buffers.contains(name) != persistent) some[name] = value;
      }
    }
    return some;
  }

  void add(const std::map<std::string, ValueId>& named, bool are_parameters, Payloads& payloads) {
    std::map<ValueId, std::vector<std::string>> names;
    for (const auto& [name, value] : named) names[value].push_back(name);
    for (const auto& [value, all] : names) {
      const at::Tensor tensor = tensor_of(value, all);
      const Json& meta = description_of(value, graph_, origin_.description).meta;
      check_is_as_before(all.front(), tensor, meta);
      std::vector<std::string> in_file;
      in_file.reserve(all.size());
      for (const std::string& name : all) in_file.push_back(name_in_file(name));
      payloads.add(in_file, tensor, are_parameters, are_parameters && field(meta, "requires_grad") == true);
    }
  }

  at::Tensor tensor_of(ValueId value, const std::vector<std::string>& names) const {
    for (const std::string& name : names) {
      if (const auto found = state_.find(name); found != state_.end() && found->second.defined())
        return found->second;
    }
    if (used_.contains(value) && !graph_.non_persistent_buffers.contains(names.front()))
      throw Error("there is no tensor for '" + names.front() + "'");
    return origin_.tensor(names.front());
  }

  static void check_is_as_before(const std::string& name, const at::Tensor& tensor, const Json& meta) {
    std::vector<std::int64_t> sizes;
    for (const Json& size : list_field(meta, "sizes"))
      sizes.push_back(integer_of_json(field(size, "as_int")));
    const c10::ScalarType dtype = scalar_type_of(field(meta, "dtype"));
    if (tensor.sizes() == sizes && tensor.scalar_type() == dtype) return;
    throw Error("the tensor '" + name + "' is " + c10::toString(tensor.scalar_type()) + " " +
                c10::str(tensor.sizes()) + ", but the model takes " + c10::toString(dtype) + " " +
                c10::str(c10::IntArrayRef(sizes)));
  }

  const Origin& origin_;
  const Graph& graph_;
  const NamedTensors& state_;
  std::set<ValueId> used_;
};

void write_text(caffe2::serialize::PyTorchStreamWriter& writer, const std::string& record,
                const std::string& text) {
  writer.writeRecord(record, text.data(), text.size());
}

void write_program(const std::filesystem::path& file, const Origin& origin, const Graph& graph,
                   const NamedTensors& state) {
  check(graph);
  const ProgramDescription& description = origin.description;
  const std::string program = program_json(graph, description).dump();
  StateWriter tensors(origin, graph, state);
  const Payloads weights = tensors.weights();
  const Payloads constants = tensors.constants();
  const bool has_sample = has_names(graph.inputs, description.inputs);
  write_archive(file, [&](caffe2::serialize::PyTorchStreamWriter& writer) {
    writer.setMinVersion(kArchiveVersion);
    weights.write(writer, "model_weights_config.json");
    constants.write(writer, "model_constants_config.json");
    write_text(writer, "models/model.json", program);
    writer.writeRecord("data/sample_inputs/model.pt", description.sample_inputs.begin.get(),
                       has_sample ? description.sample_inputs.size : 0);
    write_text(writer, "archive_format", "pt2");
    write_text(writer, "archive_version", "0");
    write_text(writer, "byteorder", "little");
  });
}

void write(const std::filesystem::path& file, const Origin& origin, const Graph& graph,
           const NamedTensors& state) {
  try {
    write_program(file, origin, graph, state);
  } catch (const c10::Error& error) {
    throw Error(file.string() + ": " + error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw Error(file.string() + ": " + error.what());
  }
}

}  // namespace

void write_model(const std::filesystem::path& file, const ExportedModel& model, const Graph& graph,
                 const NamedTensors& state) {
  const auto load = [&](const std::string& name) {
    Graph only;
    only.buffers[name] = 0;
    return model.load(only).at(name);
  };
  write(file, {model.description(), load}, graph, state);
}

void write_model(const std::filesystem::path& file, const TracedModel& model, const Graph& graph,
                 const NamedTensors& state) {
  const auto find = [&](const std::string& name) { return model.state.at(name_in_file(name)); };
  write(file, {*model.description, find}, graph, state);
}

NamedTensors without_copies(const NamedTensors& state, const Graph& whole) {
  NamedTensors without;
  for (const auto& [name, tensor] : state) {
    const std::string own = name_in_file(name);
    if (!whole.non_persistent_buffers.contains(own)) without.emplace(own, tensor);
  }
  std::map<ValueId, at::Tensor> by_value;
  for (const auto& [name, value] : whole.parameters) {
    if (const auto found = without.find(name); found != without.end()) by_value.emplace(value, found->second);
  }
  for (const auto& [name, value] : whole.parameters) {
    if (const auto found = by_value.find(value); found != by_value.end()) without[name] = found->second;
  }
  return without;
}

}  // namespace pipewright
