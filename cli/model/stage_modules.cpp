#include "model/stage_modules.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <utility>

namespace pipewright::cli {
namespace {

/// `blocks.` and 3 of `blocks.3`.
std::optional<std::pair<std::string, int>> numbered(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  const std::size_t begin = dot == std::string::npos ? 0 : dot + 1;
  int number = 0;
  const auto [end, error] = std::from_chars(name.data() + begin, name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return std::pair(name.substr(0, begin), number);
}

/// `blocks.0`, `blocks.1`, `blocks.2` become `blocks.0–2`.
std::vector<std::string> with_ranges(const std::vector<std::string>& names) {
  std::vector<std::string> shorter;
  shorter.reserve(names.size());
  for (std::size_t at = 0; at < names.size();) {
    std::size_t end = at + 1;
    const auto first = numbered(names[at]);
    for (; first && end < names.size(); ++end) {
      if (numbered(names[end]) != std::pair(first->first, first->second + static_cast<int>(end - at))) break;
    }
    std::string name = names[at];
    if (first && end - at > 1) name += "–" + std::to_string(first->second + static_cast<int>(end - at) - 1);
    shorter.push_back(std::move(name));
    at = end;
  }
  return shorter;
}

}  // namespace

std::vector<std::vector<std::string>> stage_modules(const Graph& graph,
                                                    const std::vector<std::size_t>& cuts) {
  std::map<std::string, std::pair<std::size_t, std::size_t>> ranges;
  for (std::size_t at = 0; at < graph.nodes.size(); ++at) {
    for (const std::string& module : graph.nodes[at].modules)
      ranges.try_emplace(module, at, at).first->second.second = at;
  }
  std::vector<std::vector<std::string>> stages;
  for (std::size_t stage = 0; stage <= cuts.size(); ++stage) {
    const std::size_t begin = stage == 0 ? 0 : cuts[stage - 1];
    const std::size_t end = stage == cuts.size() ? graph.nodes.size() : cuts[stage];
    std::vector<std::string> names;
    for (std::size_t at = begin; at < end; ++at) {
      std::string name;
      for (const std::string& module : graph.nodes[at].modules) {
        if (module.empty()) continue;
        const auto& [first, last] = ranges.at(module);
        const bool is_whole = first >= begin && last < end;
        name = is_whole ? module : module + " (part)";
        // Of one that is larger than a stage, what is inside of it says more.
        if (is_whole || (last - first) * (cuts.size() + 1) < graph.nodes.size()) break;
      }
      if (!name.empty() && std::ranges::count(names, name) == 0) names.push_back(name);
    }
    stages.push_back(with_ranges(names));
  }
  return stages;
}

}  // namespace pipewright::cli
