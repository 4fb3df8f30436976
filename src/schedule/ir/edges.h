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
  /// A skip as seen from one of its stages.
  struct Way {
    Stage peer;
    std::size_t edge;
  };

  explicit Edges(const Schedule& schedule)
      : count_(schedule.placement.size() + schedule.skips.size()),
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

  /// The skips to later stages, and those from earlier ones, ascending.
  std::span<const Way> skips_from(Stage stage) const { return ways(out_, stage); }
  std::span<const Way> skips_into(Stage stage) const { return ways(in_, stage); }

  /// The edge that a message takes; size() if there is no such skip.
  std::size_t of(Action message) const {
    const Stage peer = peer_stage(message);
    const bool is_later = peer > message.stage;
    if (message.skipped == 0) return is_later ? message.stage : static_cast<std::size_t>(peer);
    for (const auto& [stage, edge] : is_later ? skips_from(message.stage) : skips_into(message.stage)) {
      if (stage == peer) return edge;
    }
    return count_;
  }

 private:
  static std::span<const Way> ways(const std::vector<std::vector<Way>>& by_stage, Stage stage) {
    if (by_stage.empty()) return {};
    return by_stage[static_cast<std::size_t>(stage)];
  }

  std::size_t count_;
  std::vector<std::vector<Way>> out_;  // by stage; empty where there are no skips
  std::vector<std::vector<Way>> in_;
};

}  // namespace pipewright
