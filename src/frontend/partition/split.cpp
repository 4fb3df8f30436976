#include "pipewright/frontend/split.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "frontend/partition/cut_points.h"
#include "frontend/partition/element_count.h"
#include "pipewright/base/error.h"

namespace pipewright {
namespace {

constexpr double kSlack = 1.05;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// `blocks.0` for `blocks.0.norm.weight`, of whose module that is.
bool is_in(const std::string& name, const std::string& module) {
  return module.empty() || name == module || name.starts_with(module + ".");
}

bool is_in(const GraphNode& node, const std::string& module) {
  return std::ranges::any_of(node.modules, [&](const std::string& each) { return is_in(each, module); });
}

/// The first and the last node of a module.
std::pair<std::size_t, std::size_t> nodes_of(const Graph& graph, const std::string& module) {
  std::optional<std::pair<std::size_t, std::size_t>> found;
  for (std::size_t at = 0; at < graph.nodes.size(); ++at) {
    if (!is_in(graph.nodes[at], module)) continue;
    if (!found) found.emplace(at, at);
    found->second = at;
  }
  if (found) return *found;
  std::set<std::string> modules;
  for (const GraphNode& node : graph.nodes) modules.insert(node.modules.begin(), node.modules.end());
  std::string known;
  for (const std::string& each : modules) known += each.empty() ? "" : " " + each;
  throw ArgumentError("the model has no module '" + module + "' that computes something; there are" + known);
}

/// Cuts of a row of nodes into stages, none of which costs more than some cap.
class Balance {
 public:
  Balance(const Graph& graph, const NodeCosts& costs)
      : bytes_(bytes_across(graph)), before_(costs.size() + 1) {
    std::partial_sum(costs.begin(), costs.end(), before_.begin() + 1);
    const auto conflicts = cut_conflicts(graph);
    allowed_.reserve(conflicts.size());
    for (const auto& conflict : conflicts) allowed_.push_back(!conflict);
  }

  /// The least that the most expensive stage can cost.
  double least_cap(std::size_t stages) const {
    double too_little = 0;
    double enough = before_.back();
    while (enough - too_little > before_.back() * 1e-9) {
      const double middle = (too_little + enough) / 2;
      (fits(stages, middle) ? enough : too_little) = middle;
    }
    return enough;
  }

  /// Those with the fewest bytes across; nothing where there are none.
  std::vector<std::size_t> cuts(std::size_t stages, double cap) const {
    const std::size_t nodes = allowed_.size();
    // least[k][i]: the bytes of the cuts that end stages 0 to k, the last of them before node i.
    std::vector<std::vector<double>> least(stages, std::vector<double>(nodes + 1, kInfinity));
    std::vector<std::vector<std::size_t>> from(stages, std::vector<std::size_t>(nodes + 1));
    for (std::size_t k = 0; k < stages; ++k) {
      std::deque<std::size_t> starts;  // of stage k, the best first
      std::size_t next = 0;
      for (std::size_t end = 1; end <= nodes; ++end) {
        for (; next < end; ++next) {
          const double here = k == 0 ? (next == 0 ? 0 : kInfinity) : least[k - 1][next];
          if (here == kInfinity) continue;
          while (!starts.empty() && start_cost(least, k, starts.back()) >= here) starts.pop_back();
          starts.push_back(next);
        }
        while (!starts.empty() && before_[end] - before_[starts.front()] > cap) starts.pop_front();
        const bool is_last = k + 1 == stages;
        if (starts.empty() || is_last != (end == nodes) || (!is_last && !allowed_[end])) continue;
        least[k][end] = start_cost(least, k, starts.front()) + (is_last ? 0 : bytes_[end]);
        from[k][end] = starts.front();
      }
    }
    if (least[stages - 1][nodes] == kInfinity) return {};
    std::vector<std::size_t> cuts(stages - 1);
    std::size_t end = nodes;
    for (std::size_t k = stages - 1; k > 0; --k) cuts[k - 1] = end = from[k][end];
    return cuts;
  }

 private:
  static double start_cost(const std::vector<std::vector<double>>& least, std::size_t k, std::size_t start) {
    return k == 0 ? 0 : least[k - 1][start];
  }

  /// Whether at most that many stages of at most that cost each are enough.
  bool fits(std::size_t stages, double cap) const {
    const std::size_t nodes = allowed_.size();
    std::size_t start = 0;
    for (std::size_t stage = 0; stage < stages; ++stage) {
      if (before_[nodes] - before_[start] <= cap) return true;
      // As far as it goes.
      const auto beyond = std::upper_bound(before_.begin(), before_.end(), before_[start] + cap);
      auto end = static_cast<std::size_t>(beyond - before_.begin()) - 1;
      while (end > start && !allowed_[end]) --end;
      if (end == start) return false;
      start = end;
    }
    return false;
  }

  std::vector<double> bytes_;
  std::vector<double> before_;  // the cost of all nodes before each
  std::vector<bool> allowed_;   // a cut before each node
};

}  // namespace

std::vector<double> bytes_across(const Graph& graph) {
  // What begins to cross, and ceases to, at each node.
  std::vector<double> change(graph.nodes.size() + 2);
  const std::vector<Lifetime> lives = lifetimes(graph);
  for (std::size_t value = 0; value < lives.size(); ++value) {
    const Lifetime& life = lives[value];
    const std::ptrdiff_t begin = life.is_state ? life.first_use : life.given;
    if (life.last_use <= begin || (life.is_state && begin < 0)) continue;
    double bytes = sizeof(std::int64_t);  // a number
    if (const auto known = graph.recorded.find(static_cast<ValueId>(value)); known != graph.recorded.end()) {
      bytes = static_cast<double>(c10::elementSize(known->second.dtype)) * element_count(known->second.sizes);
    }
    change[static_cast<std::size_t>(begin + 1)] += bytes;
    change[static_cast<std::size_t>(life.last_use + 1)] -= bytes;
  }
  std::vector<double> across(graph.nodes.size() + 1);
  double now = 0;
  for (std::size_t at = 0; at < across.size(); ++at) across[at] = now += change[at];
  return across;
}

std::vector<std::size_t> balanced_cuts(const Graph& graph, Stage stages, const NodeCosts& costs) {
  if (stages < 1 || costs.size() != graph.nodes.size()) {
    throw ArgumentError("a graph of " + std::to_string(graph.nodes.size()) + " nodes with the costs of " +
                        std::to_string(costs.size()) + " cannot be cut into " + std::to_string(stages) +
                        " stages");
  }
  if (stages == 1) return {};
  const Balance balance(graph, costs);
  const auto count = static_cast<std::size_t>(stages);
  const double least = balance.least_cap(count);
  // Exactly so many stages may need more than at most so many do, where cuts are not allowed everywhere.
  for (const double cap : {least * kSlack, 2 * least, 4 * least, kInfinity}) {
    std::vector<std::size_t> cuts = balance.cuts(count, cap);
    if (!cuts.empty()) return cuts;
  }
  throw ArgumentError("the model's " + std::to_string(graph.nodes.size()) + " nodes cannot be cut into " +
                      std::to_string(stages) +
                      " stages: there are too few, or too many of them write to memory "
                      "that others share");
}

std::vector<std::size_t> listed_cuts(const Graph& graph,
                                     const std::vector<std::vector<std::string>>& stages) {
  struct Listed {
    std::string module;
    std::size_t stage;
    std::size_t first;
    std::size_t last;
  };
  std::vector<Listed> all;
  std::vector<std::size_t> begins(stages.size(), graph.nodes.size());
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    if (stages[stage].empty()) throw ArgumentError("stage " + std::to_string(stage) + " has no modules");
    for (const std::string& module : stages[stage]) {
      const auto [first, last] = nodes_of(graph, module);
      all.push_back({module, stage, first, last});
      begins[stage] = std::min(begins[stage], first);
    }
  }
  if (!begins.empty()) begins[0] = 0;
  for (const Listed& each : all) {
    const std::size_t end = each.stage + 1 < stages.size() ? begins[each.stage + 1] : graph.nodes.size();
    if (each.first >= begins[each.stage] && each.last < end) continue;
    throw ArgumentError("'" + each.module + "' cannot be on stage " + std::to_string(each.stage) +
                        ": a part of it runs after stage " + std::to_string(each.stage + 1) + " has begun");
  }
  return {begins.begin() + (begins.empty() ? 0 : 1), begins.end()};
}

std::size_t cut_before(const Graph& graph, const std::string& module) {
  return nodes_of(graph, module).first;
}
std::size_t cut_after(const Graph& graph, const std::string& module) {
  return nodes_of(graph, module).second + 1;
}

}  // namespace pipewright
