#include "runtime/executor/program.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

namespace pipewright {
namespace {

/// The stage whose data an F or a backward needs, or −1 at the ends of the pipeline.
Stage source_stage(Action action, Stage stages) {
  const Stage stage = action.stage;
  if (action.kind == Kind::F) return stage - 1;
  return stage + 1 < stages ? stage + 1 : -1;
}

/// Both ends of the channel that a message of `stage` goes through.
std::pair<Stage, Stage> ends_of(Action message) {
  const Stage stage = message.stage;
  switch (message.kind) {
    case Kind::SendF: return {stage, stage + 1};
    case Kind::RecvF: return {stage - 1, stage};
    case Kind::SendB: return {stage, stage - 1};
    default: return {stage + 1, stage};
  }
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
      taken_before[action.microbatch] = taken;
    } else if (from < to ? action.kind == Kind::F : gives_input_grad(action.kind)) {
      ++taken;
    }
  }
  return taken_before;
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

Program compile(const Schedule& plan, Position position, Transport& transport) {
  const Rank rank = position.rank;
  Program program;
  program.local_index.assign(plan.placement.size(), -1);
  for (Stage stage = 0; stage < plan.stage_count(); ++stage) {
    if (plan.placement[static_cast<std::size_t>(stage)] != rank) continue;
    program.local_index[static_cast<std::size_t>(stage)] = static_cast<std::int32_t>(program.stages.size());
    program.stages.push_back(stage);
  }

  std::map<std::pair<Stage, Stage>, std::shared_ptr<Channel>> channels;
  const auto channel_between = [&](Stage from, Stage to) {
    std::shared_ptr<Channel>& channel = channels[{from, to}];
    if (!channel) {
      channel = transport.connect({.from = from,
                                   .to = to,
                                   .from_rank = plan.placement[static_cast<std::size_t>(from)],
                                   .to_rank = plan.placement[static_cast<std::size_t>(to)],
                                   .replica = position.replica});
    }
    return channel.get();
  };

  const std::vector<Action>& actions = plan.ranks[static_cast<std::size_t>(rank)];
  std::map<std::pair<Channel*, std::uint32_t>, std::int64_t> receives;
  std::map<Channel*, std::vector<std::size_t>> taken_before;  // of the channels that this rank sends to
  for (std::size_t at = 0; at < actions.size(); ++at) {
    const Action action = actions[at];
    Instruction instruction{.action = action,
                            .local_stage = static_cast<std::uint32_t>(program.local_index[action.stage])};
    if (is_message(action.kind)) {
      const auto [from, to] = ends_of(action);
      instruction.channel = channel_between(from, to);
      if (is_receive(action.kind)) {
        receives[{instruction.channel, action.microbatch}] = static_cast<std::int64_t>(at);
      } else {
        std::vector<std::size_t>& counts = taken_before[instruction.channel];
        if (counts.empty()) counts = taken_before_posts(plan, from, to);
        instruction.taken_before = counts[action.microbatch];
      }
    } else if (action.kind == Kind::F || gives_input_grad(action.kind)) {
      const Stage source = source_stage(action, plan.stage_count());
      if (source >= 0 && plan.placement[static_cast<std::size_t>(source)] != rank) {
        instruction.channel = channel_between(source, action.stage);
        instruction.receive = receives.at({instruction.channel, action.microbatch});
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
