#include "model/row_data.h"

#include "pipewright/base/error.h"
#include "pipewright/frontend/tensor_file.h"

namespace pipewright::cli {
namespace {

std::string quoted(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "'" : ", '") + name + "'";
  return text.empty() ? "nothing" : text;
}

}  // namespace

RowData::RowData(const std::string& file, const Graph& graph) : file_(file), tensors_(read_tensors(file)) {
  std::vector<std::string> wanted;
  std::vector<std::string> present;
  present.reserve(tensors_.size());
  for (const auto& [name, tensor] : tensors_) present.push_back(name);
  for (const Graph::Port& port : graph.inputs) {
    if (std::holds_alternative<ValueId>(port.is)) wanted.push_back(port.name);
  }
  bool recorded = false;
  for (const Graph::Port& port : graph.inputs) {
    const auto* value = std::get_if<ValueId>(&port.is);
    if (!value) continue;
    auto found = tensors_.find(port.name);
    if (found == tensors_.end()) found = tensors_.find(std::to_string(inputs_.size()));
    if (found == tensors_.end()) {
      throw Error(file + " has no '" + port.name + "' and no '" + std::to_string(inputs_.size()) +
                  "': the model takes " + quoted(wanted) + ", the file has " + quoted(present));
    }
    at::Tensor tensor = found->second;
    const auto known = graph.recorded.find(*value);
    const bool is_recorded = known != graph.recorded.end();
    if (is_recorded && tensor.is_floating_point() && at::isFloatingType(known->second.dtype)) {
      tensor = tensor.to(known->second.dtype);
    }
    if (inputs_.empty() && tensor.dim() > 0) rows_ = tensor.size(0);
    const bool has_rows = tensor.dim() > 0 && tensor.size(0) == rows_;
    inputs_.push_back(tensor);
    chunks_.push_back(has_rows ? Chunk::along(0) : Chunk::replicate());
    if (has_rows && !recorded && is_recorded && !known->second.sizes.empty()) {
      exported_rows_ = known->second.sizes.front();
      recorded = true;
    }
  }
  if (rows_ == 0) throw Error(file + ": '" + (wanted.empty() ? "0" : wanted.front()) + "' has no rows");
}

Values RowData::inputs(const at::Tensor& of_rows) const {
  Values inputs = inputs_;
  for (std::size_t at = 0; at < inputs.size(); ++at) {
    if (!chunks_[at].replicated) inputs[at] = inputs[at].index_select(0, of_rows);
  }
  return inputs;
}

at::Tensor RowData::tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw Error(file_ + " has no '" + name + "'");
  if (found->second.dim() == 0 || found->second.size(0) != rows_) {
    throw Error(file_ + ": '" + name + "' must have " + std::to_string(rows_) +
                " rows, as the first input has");
  }
  return found->second;
}

}  // namespace pipewright::cli
