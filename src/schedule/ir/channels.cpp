#include "schedule/ir/channels.h"

#include <map>
#include <utility>

namespace pipewright {

Channels::Channels(const Schedule& schedule) : edges_(schedule), channels_(2 * edges_.size()) {
  std::map<std::pair<Rank, Rank>, std::size_t> numbers;
  const auto number = [&](const Ends& ends) {
    const auto [entry, is_new] = numbers.try_emplace({ends.from, ends.to}, ends_.size());
    if (is_new) ends_.push_back(ends);
    return entry->second;
  };
  const auto connect = [&](Stage from, Stage to, std::size_t edge) {
    const Rank sender = schedule.placement[static_cast<std::size_t>(from)];
    const Rank receiver = schedule.placement[static_cast<std::size_t>(to)];
    if (sender == receiver) return;  // handed over without a message
    channels_[2 * edge] = number({.from = sender, .to = receiver});
    channels_[2 * edge + 1] = number({.from = receiver, .to = sender});
  };
  for (Stage stage = 0; stage < schedule.stage_count(); ++stage) {
    edges_.for_each(stage, Edges::To::Later, [&](Stage to, std::size_t edge) { connect(stage, to, edge); });
  }
}

std::size_t Channels::between(Rank from, Rank to) const {
  std::size_t channel = 0;
  while (channel < ends_.size() && (ends_[channel].from != from || ends_[channel].to != to)) ++channel;
  return channel;
}

}  // namespace pipewright
