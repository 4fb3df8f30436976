#pragma once

#include <map>
#include <string>
#include <vector>

#include "pipewright/frontend/graph.h"
#include "pipewright/runtime/microbatch.h"

namespace pipewright::cli {

/// What a file brings for a model: tensors by the names of its inputs or their positions, `0`, `1`, …. Those
/// that have as many rows as the first are cut into microbatches; others go to each as a whole. Floating
/// numbers get the dtype that the model was exported with.
class RowData {
 public:
  /// Throws Error that says which inputs the model takes and what the file has.
  RowData(const std::string& file, const Graph& graph);

  std::int64_t rows() const { return rows_; }
  /// Rows of a microbatch that the model was exported with.
  std::int64_t exported_rows() const { return exported_rows_; }
  /// How the inputs are split.
  const std::vector<Chunk>& chunks() const { return chunks_; }

  /// The inputs, of some rows or of all.
  Values inputs() const { return inputs_; }
  Values inputs(const at::Tensor& of_rows) const;
  /// The tensor of that name with as many rows. Throws Error where there is none.
  at::Tensor tensor(const std::string& name) const;

 private:
  std::string file_;
  std::map<std::string, at::Tensor> tensors_;
  Values inputs_;
  std::vector<Chunk> chunks_;
  std::int64_t rows_ = 0;
  std::int64_t exported_rows_ = 1;
};

}  // namespace pipewright::cli
