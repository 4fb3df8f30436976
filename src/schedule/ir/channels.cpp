#include "schedule/ir/channels.h"

#include <map>
#include <utility>

namespace pipewright {

Channels::Channels(const Placement& placement) : forward_(placement.size()), backward_(placement.size()) {
  std::map<std::pair<Rank, Rank>, std::size_t> numbers;
  const auto number = [&](std::size_t from_stage, std::size_t to_stage) {
    const Ends ends{.from = placement[from_stage], .to = placement[to_stage]};
    const auto [entry, is_new] = numbers.try_emplace({ends.from, ends.to}, ends_.size());
    if (is_new) ends_.push_back(ends);
    return entry->second;
  };
  for (std::size_t stage = 0; stage + 1 < placement.size(); ++stage) {
    if (placement[stage] == placement[stage + 1]) continue;  // handed over without a message
    forward_[stage] = number(stage, stage + 1);
    backward_[stage + 1] = number(stage + 1, stage);
  }
}

std::size_t Channels::between(Rank from, Rank to) const {
  std::size_t channel = 0;
  while (channel < ends_.size() && (ends_[channel].from != from || ends_[channel].to != to)) ++channel;
  return channel;
}

}  // namespace pipewright
