#include "pipewright/frontend/sequential.h"

#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "pipewright/base/error.h"

namespace pipewright {
namespace {

/// Some children of a Sequential, under the names that they have there.
torch::nn::Sequential children_of(torch::nn::Sequential model, std::size_t from, std::size_t to) {
  const std::vector<std::string> names = model->named_children().keys();
  torch::nn::Sequential part;
  for (std::size_t at = from; at < to; ++at) {
    part->push_back(names[at], *(model->begin() + static_cast<std::ptrdiff_t>(at)));
  }
  return part;
}

}  // namespace

StageFactory sequential_stages(const torch::nn::Sequential& model, std::vector<std::size_t> begins) {
  if (begins.empty() && model->size() > 1) {
    begins.resize(model->size() - 1);
    std::iota(begins.begin(), begins.end(), 1);
  }
  std::size_t before = 0;
  for (const std::size_t begin : begins) {
    if (begin <= before || begin >= model->size()) {
      throw ArgumentError("a stage that begins with child " + std::to_string(begin) + " of " +
                          std::to_string(model->size()) + " leaves one without children");
    }
    before = begin;
  }
  begins.insert(begins.begin(), 0);
  begins.push_back(model->size());
  const auto built = std::make_shared<std::set<Stage>>();
  return [model, begins, built](Stage stage) {
    const auto at = static_cast<std::size_t>(stage);
    if (at + 1 >= begins.size()) {
      throw ArgumentError("the model has " + std::to_string(begins.size() - 1) +
                          " stages, and none of number " + std::to_string(stage));
    }
    torch::nn::Sequential part = children_of(model, begins[at], begins[at + 1]);
    if (!built->insert(stage).second) {
      part = torch::nn::Sequential(std::dynamic_pointer_cast<torch::nn::SequentialImpl>(part->clone()));
    }
    StageModel made(part);
    made.global_name = [](const std::string& name) { return name; };
    return made;
  };
}

}  // namespace pipewright
