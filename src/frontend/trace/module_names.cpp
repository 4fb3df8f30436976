#include "frontend/trace/module_names.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "frontend/graph/number_operators.h"
#include "frontend/graph/uses.h"

namespace pipewright {
namespace {

using Path =
    std::vector<std::string>;  // of modules by their whole names, outermost first, the model itself first

/// Of `blocks.0.norm.weight`: the model, `blocks`, `blocks.0`, `blocks.0.norm`.
Path path_of_owner(const std::string& name) {
  Path path = {""};
  for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    path.push_back(name.substr(0, dot));
  }
  return path;
}

Path common(const Path& a, const Path& b) {
  const auto end = std::ranges::mismatch(a, b).in1;
  return {a.begin(), end};
}

/// A size, or a constant that is copied.
bool is_preparation(const GraphNode& node, const Graph& graph) {
  if (node.op == kPipeSplit) return false;
  bool takes_constant = false;
  for_each_use(node, [&](ValueId value) { takes_constant |= graph.constants.contains(value); });
  return is_on_numbers(node) || (node.op == "aten::clone" && takes_constant);
}

class ModuleNames {
 public:
  explicit ModuleNames(const ModelState& state, const Graph& graph) {
    for (const auto& [name, tensor] : state.parameters)
      owners_[graph.parameters.at(name)].push_back(path_of_owner(name));
    for (const auto& [name, tensor] : state.buffers)
      owners_[graph.buffers.at(name)].push_back(path_of_owner(name));
  }

  /// Empty where the node uses no state.
  Path path_of(const GraphNode& node) {
    Path path;
    std::vector<ValueId> with_several;
    for_each_use(node, [&](ValueId value) {
      const auto found = owners_.find(value);
      if (found == owners_.end()) return;
      if (found->second.size() > 1) {
        with_several.push_back(value);
      } else {
        path = path.empty() ? found->second.front() : common(path, found->second.front());
      }
    });
    for (const ValueId value : with_several) {
      const Path own = next_owner(value, path);
      path = path.empty() ? own : common(path, own);
    }
    return path;
  }

 private:
  /// The name of a parameter with several that fits to the others that the node uses; otherwise the next.
  Path next_owner(ValueId value, const Path& others) {
    const std::vector<Path>& owners = owners_.at(value);
    if (!others.empty()) {
      return *std::ranges::max_element(owners, {},
                                       [&](const Path& each) { return common(each, others).size(); });
    }
    return owners[std::min(uses_[value]++, owners.size() - 1)];
  }

  std::map<ValueId, std::vector<Path>> owners_;
  std::map<ValueId, std::size_t> uses_;
};

}  // namespace

void name_modules(Graph& graph, const ModelState& state) {
  ModuleNames names(state, graph);
  std::vector<Path> paths;
  paths.reserve(graph.nodes.size());
  for (const GraphNode& node : graph.nodes) paths.push_back(names.path_of(node));
  // What is only there for the node behind it is where that is.
  for (std::size_t at = paths.size(); at-- > 1;) {
    if (paths[at - 1].empty() && is_preparation(graph.nodes[at - 1], graph)) paths[at - 1] = paths[at];
  }
  Path next = {""};
  std::vector<Path> nexts(paths.size());
  for (std::size_t at = paths.size(); at-- > 0;) {
    nexts[at] = next;
    if (!paths[at].empty()) next = paths[at];
  }
  Path last = {""};
  for (std::size_t at = 0; at < paths.size(); ++at) {
    if (!paths[at].empty()) {
      last = paths[at];
      graph.nodes[at].modules = last;
      continue;
    }
    const std::size_t shared = common(last, nexts[at]).size();
    graph.nodes[at].modules = {last.begin(),
                               last.begin() + static_cast<std::ptrdiff_t>(std::min(shared + 1, last.size()))};
  }
}

}  // namespace pipewright
