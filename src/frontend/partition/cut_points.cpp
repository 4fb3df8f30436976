#include "frontend/partition/cut_points.h"

#include <algorithm>

#include "frontend/graph/aliases.h"
#include "frontend/graph/uses.h"

namespace pipewright {

std::vector<Lifetime> lifetimes(const Graph& graph) {
  std::vector<Lifetime> lives(graph.values.size());
  const auto of = [&](ValueId value) -> Lifetime& { return lives[static_cast<std::size_t>(value)]; };
  const auto use = [&](ValueId value, std::ptrdiff_t node) {
    Lifetime& life = of(value);
    if (life.first_use < 0) life.first_use = node;
    life.last_use = node;
  };
  for (const Graph::Port& port : graph.inputs) {
    if (const auto* value = std::get_if<ValueId>(&port.is)) of(*value).is_state = false;
  }
  std::ptrdiff_t at = 0;
  for (const GraphNode& node : graph.nodes) {
    for_each_use(node, [&](ValueId value) { use(value, at); });
    for (const auto& output : node.outputs) {
      for (const ValueId value : output) {
        if (value < 0) continue;
        of(value).given = at;
        of(value).is_state = false;
      }
    }
    ++at;
  }
  for (const Graph::Port& port : graph.outputs) {
    if (const auto* value = std::get_if<ValueId>(&port.is)) use(*value, at);
  }
  return lives;
}

std::vector<std::optional<CutConflict>> cut_conflicts(const Graph& graph) {
  std::vector<std::optional<CutConflict>> conflicts(graph.nodes.size());
  const std::vector<Lifetime> lives = lifetimes(graph);
  const Aliases aliases(graph);
  for (const Aliases::Written& written : aliases.written()) {
    const auto last_write = static_cast<std::ptrdiff_t>(*written.writers.rbegin());
    std::ptrdiff_t begin = last_write;
    std::ptrdiff_t end = last_write;
    bool has_state = false;
    for (const ValueId value : written.values) {
      const Lifetime& life = lives[static_cast<std::size_t>(value)];
      if (life.last_use < 0) continue;
      begin = std::min(begin, life.is_state ? life.first_use : life.given);
      if (life.is_state) end = std::max(end, life.last_use);
      has_state |= life.is_state;
    }
    end = std::min(end, static_cast<std::ptrdiff_t>(graph.nodes.size()) - 1);
    for (std::ptrdiff_t cut = begin + 1; cut <= end; ++cut) {
      std::vector<ValueId> come;
      for (const ValueId value : written.values) {
        const Lifetime& life = lives[static_cast<std::size_t>(value)];
        // A parameter or buffer is another tensor on the other side, whenever it is written to.
        if (life.crosses(cut) && (life.is_state || cut <= last_write)) come.push_back(value);
      }
      // One alone may come, and be written to there, if it is not a part of a parameter or buffer.
      if (come.empty() || (come.size() == 1 && !has_state)) continue;
      conflicts[static_cast<std::size_t>(cut)] = CutConflict{come.front(), come.back()};
    }
  }
  return conflicts;
}

}  // namespace pipewright
