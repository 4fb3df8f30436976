#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "pipewright/schedule/schedule.h"

namespace pipewright {

/// The ways from stage to stage, numbered from 0: that from stage s to the next
/// is s, and the skips follow. Over each goes an activation a microbatch, and
/// its gradient comes back.
///
/// REQUIRES: skips as Schedule describes them, between stages that it has.
class Edges {
 public:
  explicit Edges(const Schedule& schedule)
      : last_stage_(schedule.last_stage()),
        count_(schedule.placement.size() + schedule.skips.size()),
        out_(schedule.skips.empty() ? 0 : schedule.placement.size()),
        in_(out_.size()) {
    std::size_t edge = schedule.placement.size();
    for (const auto& [from, to] : schedule.skips) {
      out_[static_cast<std::size_t>(from)].push_back({.peer = to, .edge = edge});
      in_[static_cast<std::size_t>(to)].push_back({.peer = from, .edge = edge});
      ++edge;
    }
  }

  /// More than every number: that of the last stage stands for nothing.
  std::size_t size() const { return count_; }

  enum class To { Later, Earlier };
  /// Calls `visit(peer, edge)` for each edge to later stages, or to earlier ones: the neighbour first, then
  /// skips in ascending order.
  template <class Visit>
  void for_each(Stage stage, To to, Visit&& visit) const {
    const bool later = to == To::Later;
    if (stage == (later ? last_stage_ : 0)) return;  // nor is there a skip
    const std::span<const Way> skips = skips_of(later ? out_ : in_, stage);
    Way way = later ? Way{stage + 1, static_cast<std::size_t>(stage)}
                    : Way{stage - 1, static_cast<std::size_t>(stage - 1)};
    // One call, which can be inlined; most models have no skips.
    for (auto next = skips.begin();; way = *next++) {
      visit(way.peer, way.edge);
      if (next == skips.end()) [[likely]]
        return;
    }
  }

  /// The edge that a message takes; size() if there is no such skip.
  std::size_t of(Action message) const {
    const bool later = message.kind == Kind::SendF || message.kind == Kind::RecvB;
    if (message.link == 0) [[likely]]
      return later ? message.stage : message.stage - 1U;
    const Stage peer = peer_stage(message);
    for (const auto& [stage, edge] : skips_of(later ? out_ : in_, message.stage)) {
      if (stage == peer) return edge;
    }
    return count_;
  }

 private:
  /// A skip as seen from one of its stages.
  struct Way {
    Stage peer;
    std::size_t edge;
  };

  static std::span<const Way> skips_of(const std::vector<std::vector<Way>>& by_stage, Stage stage) {
    if (by_stage.empty()) [[likely]]
      return {};
    return by_stage[static_cast<std::size_t>(stage)];
  }

  Stage last_stage_;
  std::size_t count_;
  std::vector<std::vector<Way>> out_;  // by stage; empty where there are no skips
  std::vector<std::vector<Way>> in_;
};

}  // namespace pipewright
