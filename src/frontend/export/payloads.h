#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "frontend/schema/json_fields.h"

namespace caffe2::serialize {
class PyTorchStreamWriter;
}

namespace pipewright {

/// Tensors that are written into an archive as records, by name, and the table of where each is.
class Payloads {
 public:
  /// `folder`: with a slash at its end; `prefix`: of the records' names in it.
  Payloads(std::string folder, std::string prefix) : folder_(std::move(folder)), prefix_(std::move(prefix)) {}

  /// One tensor under several names. Throws Error for a tensor that shares memory with an earlier one.
  void add(const std::vector<std::string>& names, const at::Tensor& tensor, bool is_parameter,
           bool requires_grad);

  /// The records, and the table as `folder/config`.
  void write(caffe2::serialize::PyTorchStreamWriter& writer, const std::string& config) const;

 private:
  std::string folder_;
  std::string prefix_;
  struct Payload {
    at::Tensor on_cpu;
    const std::byte* begin;  // where it is
    const std::byte* end;
    std::string name;
  };
  std::vector<Payload> payloads_;
  Json table_ = Json::object();
};

}  // namespace pipewright
