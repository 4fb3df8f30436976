#include "runtime/executor/program.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

namespace pipewright {
namespace {

/// Both ends of the channel that a message goes through.
std::pair<Stage, Stage> ends_of(Action message) {
  const Stage stage = message.stage;
  const Stage peer = peer_stage(message);
  return is_send(message.kind) ? std::pair(stage, peer) : std::pair(peer, stage);
}

/// For each microbatch that comes through a channel, how many of its messages have been taken
/// when this one's RECV is reached.
std::vector<std::size_t> taken_before_posts(const Schedule& plan, Stage from, Stage to) {
  std::vector<std::size_t> taken_before(static_cast<std::size_t>(plan.microbatches));
  const Kind receive = from < to ? Kind::RecvF : Kind::RecvB;
  std::size_t taken = 0;
  for (const Action action :
       plan.ranks[static_cast<std::size_t>(plan.placement[static_cast<std::size_t>(to)])]) {
    if (static_cast<Stage>(action.stage) != to) continue;
    if (action.kind == receive) {
      if (peer_stage(action) == from) taken_before[action.microbatch] = taken;
    } else if (from < to ? action.kind == Kind::F : gives_input_grad(action.kind)) {
      ++taken;
    }
  }
  return taken_before;
}

/// The ways of a stage, channels aside.
StageWays ways_of(const Schedule& plan, const Routes& routes, Stage stage) {
  std::map<Stage, std::vector<std::size_t>> earlier;  // slots by peer: neighbours also without any
  std::map<Stage, std::vector<std::size_t>> later;
  if (stage > 0) earlier[stage - 1] = {};
  if (stage < plan.last_stage()) later[stage + 1] = {};
  StageWays ways;
  if (!routes.empty()) {
    const std::vector<Source>& own = routes[static_cast<std::size_t>(stage)];
    ways.inputs = own.size();
    std::vector<int> takers(own.size());
    for (Stage taker = stage; taker < plan.stage_count(); ++taker) {
      for (const Source& source : routes[static_cast<std::size_t>(taker)]) {
        if (source.stage == stage) later[taker].push_back(source.output);
        for (std::size_t input = 0; input < own.size(); ++input)
          takers[input] += source == own[input] ? 1 : 0;
      }
    }
    for (std::size_t input = 0; input < own.size(); ++input) {
      earlier[own[input].stage].push_back(input);
      if (takers[input] > 1) ways.shared_inputs.push_back(input);
    }
  }
  const auto list = [&](const std::map<Stage, std::vector<std::size_t>>& peers, std::vector<Way>& out) {
    for (const auto& [peer, slots] : peers) {
      out.push_back({.peer = peer, .all = routes.empty(), .slots = slots});
    }
  };
  list(earlier, ways.earlier);
  list(later, ways.later);
  return ways;
}

std::size_t index_of(const std::vector<Way>& ways, Stage peer) {
  return static_cast<std::size_t>(std::ranges::find(ways, peer, &Way::peer) - ways.begin());
}

}  // namespace

bool independent(std::span<const Action> cell) {
  for (std::size_t i = 0; i < cell.size(); ++i) {
    for (std::size_t j = i + 1; j < cell.size(); ++j) {
      if (cell[i].stage == cell[j].stage) return false;
    }
  }
  return true;
}

Program compile(const Schedule& plan, const Routes& routes, Position position, const RankDevices& devices,
                Transport& transport) {
  const Rank rank = position.rank;
  Program program;
  program.local_index.assign(plan.placement.size(), -1);
  for (Stage stage = 0; stage < plan.stage_count(); ++stage) {
    if (plan.placement[static_cast<std::size_t>(stage)] != rank) continue;
    program.local_index[static_cast<std::size_t>(stage)] = static_cast<std::int32_t>(program.stages.size());
    program.stages.push_back(stage);
    program.ways.push_back(ways_of(plan, routes, stage));
  }

  std::map<std::pair<Stage, Stage>, std::shared_ptr<Channel>> channels;
  const auto channel_between = [&](Stage from, Stage to) {
    std::shared_ptr<Channel>& channel = channels[{from, to}];
    if (!channel) {
      const Rank from_rank = plan.placement[static_cast<std::size_t>(from)];
      const Rank to_rank = plan.placement[static_cast<std::size_t>(to)];
      channel = transport.connect({.from = from,
                                   .to = to,
                                   .from_rank = from_rank,
                                   .to_rank = to_rank,
                                   .replica = position.replica,
                                   .from_device = devices.at(position.replica, from_rank),
                                   .to_device = devices.at(position.replica, to_rank)});
    }
    return channel.get();
  };

  for (std::size_t at = 0; at < program.stages.size(); ++at) {
    for (std::vector<Way> StageWays::* const side : {&StageWays::earlier, &StageWays::later}) {
      std::vector<Way> StageWays::* const other =
          side == &StageWays::earlier ? &StageWays::later : &StageWays::earlier;
      for (Way& way : program.ways[at].*side) {
        const std::int32_t local = program.local_index[static_cast<std::size_t>(way.peer)];
        if (local < 0) continue;
        way.mirror = index_of(program.ways[static_cast<std::size_t>(local)].*other, program.stages[at]);
      }
    }
  }

  const std::vector<Action>& actions = plan.ranks[static_cast<std::size_t>(rank)];
  std::map<Channel*, std::vector<std::size_t>> taken_before;  // of the channels that this rank sends to
  for (std::size_t at = 0; at < actions.size(); ++at) {
    const Action action = actions[at];
    Instruction instruction{.action = action,
                            .local_stage = static_cast<std::uint32_t>(program.local_index[action.stage])};
    if (is_message(action.kind)) {
      const auto [from, to] = ends_of(action);
      instruction.channel = channel_between(from, to);
      StageWays& ways = program.ways[instruction.local_stage];
      std::vector<Way>& side = peer_stage(action) < action.stage ? ways.earlier : ways.later;
      instruction.way = static_cast<std::uint32_t>(index_of(side, peer_stage(action)));
      if (is_receive(action.kind)) {
        Way& way = side[instruction.way];
        way.incoming = instruction.channel;
        way.receives.resize(static_cast<std::size_t>(plan.microbatches));
        way.receives[action.microbatch] = at;
      } else {
        std::vector<std::size_t>& counts = taken_before[instruction.channel];
        if (counts.empty()) counts = taken_before_posts(plan, from, to);
        instruction.taken_before = counts[action.microbatch];
      }
    }
    program.instructions.push_back(instruction);
    const std::size_t parts = cell_size(actions, at);
    if (parts > 1 && independent(std::span(actions).subspan(at, parts))) {
      program.parallel_parts = std::max(program.parallel_parts, parts - 1);
    }
  }
  for (auto& [edge, channel] : channels) program.channels.push_back(std::move(channel));
  return program;
}

}  // namespace pipewright
