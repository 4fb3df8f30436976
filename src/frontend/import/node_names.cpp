#include "frontend/import/node_names.h"

#include <algorithm>

#include "frontend/graph/number_operators.h"

namespace pipewright {
namespace {

/// The parts of `a,b,c`.
std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::size_t start = 0;
  while (start <= text.size()) {
    const std::size_t end = std::min(text.find(at, start), text.size());
    parts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

}  // namespace

/// `key,name,type;key,name,type`: names and types, outermost first. A module that was called again is
/// `name@1`.
std::vector<std::pair<std::string, std::string>> modules_of(const Json& node) {
  std::vector<std::pair<std::string, std::string>> modules;
  const auto metadata = node.find("metadata");
  if (metadata == node.end() || !metadata->is_object()) return modules;
  const auto stack = metadata->find("nn_module_stack");
  if (stack == metadata->end() || !stack->is_string()) return modules;
  for (const std::string& entry : split(stack->get<std::string>(), ';')) {
    const std::vector<std::string> fields = split(entry, ',');
    if (fields.size() < 3 || fields[1].starts_with("_empty_nn_module_stack")) continue;
    modules.emplace_back(fields[1].substr(0, fields[1].find('@')), fields[2]);
  }
  return modules;
}

std::pair<std::string, std::string> operator_name(const std::string& target) {
  constexpr std::string_view kOps = "torch.ops.";
  if (target == "torch.ops.pippy._pipe_split.default")
    return {kPipeSplit, ""};  // of torch.distributed.pipelining
  if (!target.starts_with(kOps)) return {target, ""};
  const std::vector<std::string> parts = split(target.substr(kOps.size()), '.');
  if (parts.size() != 3) return {target, ""};
  return {parts[0] + "::" + parts[1], parts[2] == "default" ? "" : parts[2]};
}

}  // namespace pipewright
