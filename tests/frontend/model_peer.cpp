// Runs an exported model: model_peer FOLDER, for each folder that a line of the input names. There are
// model.pt2 and inputs.pt, a list of tensors; outputs.pt gets a list of the outputs, gradients.pt and
// buffers.pt dictionaries by name. The gradients are those of the sum of all outputs, each with weights that
// both sides know.

#include <ATen/Parallel.h>
#include <torch/csrc/api/include/torch/serialize.h>
#include <torch/torch.h>

#include <fstream>
#include <iostream>

#include "pipewright/frontend/exported_model.h"
#include "pipewright/frontend/graph_module.h"

namespace pipewright {
namespace {

c10::IValue read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return torch::pickle_load({std::istreambuf_iterator<char>(file), {}});
}

void write(const std::string& path, const c10::IValue& value) {
  const std::vector<char> bytes = torch::pickle_save(value);
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

using Tensors = c10::Dict<std::string, at::Tensor>;

void run(const std::string& folder) {
  torch::manual_seed(1);
  const ExportedModel model(folder + "/model.pt2");
  GraphModule module(model.graph(), model.load(model.graph()));
  Values inputs;
  const c10::IValue brought = read(folder + "/inputs.pt");
  for (const c10::IValue& input : brought.toListRef()) inputs.push_back(input.toTensor());
  const Values outputs = module.forward(inputs);
  at::Tensor sum;
  for (const at::Tensor& output : outputs) {
    if (!output.requires_grad()) continue;
    const at::Tensor weights =
        torch::linspace(0.5, 1.5, output.numel(), output.options().dtype(at::kFloat).requires_grad(false));
    const at::Tensor part = (output.to(at::kFloat).reshape({-1}) * weights).sum();
    sum = sum.defined() ? sum + part : part;
  }
  if (sum.defined()) sum.backward();
  c10::List<at::Tensor> given;
  for (const at::Tensor& output : outputs) given.push_back(output.detach());
  write(folder + "/outputs.pt", given);
  Tensors gradients;
  for (const auto& item : module.named_parameters()) {
    if (item.value().grad().defined()) gradients.insert(item.key(), item.value().grad());
  }
  write(folder + "/gradients.pt", gradients);
  Tensors buffers;
  for (const auto& item : module.named_buffers()) buffers.insert(item.key(), item.value().clone());
  write(folder + "/buffers.pt", buffers);
}

}  // namespace
}  // namespace pipewright

int main() {
  at::set_num_threads(1);
  for (std::string folder; std::getline(std::cin, folder);) {
    try {
      pipewright::run(folder);
      std::cout << "done" << std::endl;
    } catch (const c10::Error& error) {
      std::cout << "error " << error.what_without_backtrace() << std::endl;
    } catch (const std::exception& error) {
      std::cout << "error " << error.what() << std::endl;
    }
  }
}
