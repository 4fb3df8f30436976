#include "frontend/export/payloads.h"

#include <caffe2/serialize/inline_container.h>

#include "frontend/schema/schema_numbers.h"

namespace pipewright {
namespace {

/// How many bytes a tensor reaches over.
std::size_t extent_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  std::int64_t last = 0;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) last += (tensor.size(dim) - 1) * tensor.stride(dim);
  return static_cast<std::size_t>((last + 1) * static_cast<std::int64_t>(tensor.element_size()));
}

}  // namespace

void Payloads::add(const std::vector<std::string>& names, const at::Tensor& tensor, bool is_parameter,
                   bool requires_grad) {
  if (tensor.layout() != c10::kStrided || tensor.is_quantized() || tensor.is_conj() || tensor.is_neg())
    throw Error("the tensor '" + names.front() + "' is no plain one: it cannot be written");
  // Bytes in their order in memory, with any strides that leave no gaps.
  const at::Tensor dense =
      tensor.is_non_overlapping_and_dense() ? tensor.detach() : tensor.detach().contiguous();
  const auto* begin = static_cast<const std::byte*>(tensor.const_data_ptr());
  Payload payload{dense.cpu(), begin, begin + extent_of(tensor), names.front()};
  for (const Payload& other : payloads_) {
    if (payload.begin < other.end && other.begin < payload.end) {
      throw Error("the tensors '" + other.name + "' and '" + payload.name +
                  "' share memory, which they would not in Python: give copies of them");
    }
  }
  Json meta = tensor_meta_json(sizes_json(payload.on_cpu.sizes()), sizes_json(payload.on_cpu.strides()),
                               payload.on_cpu.scalar_type(), c10::kCPU);
  meta["requires_grad"] = requires_grad;
  for (const std::string& name : names) {
    table_[name] = {{"path_name", prefix_ + std::to_string(payloads_.size())},
                    {"is_param", is_parameter},
                    {"use_pickle", false},
                    {"tensor_meta", meta}};
  }
  payloads_.push_back(std::move(payload));
}

void Payloads::write(caffe2::serialize::PyTorchStreamWriter& writer, const std::string& config) const {
  for (std::size_t at = 0; at < payloads_.size(); ++at) {
    const at::Tensor& tensor = payloads_[at].on_cpu;
    writer.writeRecord(folder_ + prefix_ + std::to_string(at), tensor.const_data_ptr(), tensor.nbytes());
  }
  const std::string text = Json{{"config", table_}}.dump();
  writer.writeRecord(folder_ + config, text.data(), text.size());
}

}  // namespace pipewright
