#include "schedule/mutants.h"

namespace pipewright {
namespace {

using Cell = std::vector<Action>;

std::vector<Cell> to_cells(const std::vector<Action>& actions) {
  std::vector<Cell> cells;
  for (std::size_t at = 0; at < actions.size();) {
    const std::size_t size = cell_size(actions, at);
    cells.emplace_back(actions.begin() + static_cast<std::ptrdiff_t>(at),
                       actions.begin() + static_cast<std::ptrdiff_t>(at + size));
    at += size;
  }
  return cells;
}

std::size_t below(std::size_t count, std::mt19937& random) {
  return std::uniform_int_distribution<std::size_t>(0, count - 1)(random);
}

void insert(std::vector<Cell>& cells, Cell cell, std::mt19937& random) {
  const std::size_t at = below(cells.size() + 1, random);
  cells.insert(cells.begin() + static_cast<std::ptrdiff_t>(at), std::move(cell));
}

/// How many stages a message could go to or come from.
std::size_t possible_peers(Action message, Stage stages) {
  const bool is_later = message.kind == Kind::SendF || message.kind == Kind::RecvB;
  return static_cast<std::size_t>(is_later ? stages - 1 - message.stage : Stage{message.stage});
}

void redirect_one(std::vector<std::vector<Cell>>& ranks, Stage stages, std::mt19937& random) {
  std::vector<Action*> candidates;
  for (auto& cells : ranks) {
    for (Cell& cell : cells) {
      if (is_message(cell[0].kind) && possible_peers(cell[0], stages) > 1) candidates.push_back(&cell[0]);
    }
  }
  Action& message = *candidates[below(candidates.size(), random)];
  const std::uint8_t before = message.link;
  while (message.link == before) {
    message.link = static_cast<std::uint8_t>(below(possible_peers(message, stages), random));
  }
}

}  // namespace

Schedule mutate(const Schedule& schedule, Mutation mutation, std::mt19937& random) {
  std::vector<std::vector<Cell>> ranks;
  for (const auto& actions : schedule.ranks) ranks.push_back(to_cells(actions));
  auto& cells = ranks[below(ranks.size(), random)];
  std::size_t chosen = below(cells.size(), random);
  while (cells[chosen][0].kind == Kind::Bubble) chosen = below(cells.size(), random);
  const Cell cell = cells[chosen];
  switch (mutation) {
    case Mutation::Drop: cells.erase(cells.begin() + static_cast<std::ptrdiff_t>(chosen)); break;
    case Mutation::Swap: std::swap(cells[chosen], cells[below(cells.size(), random)]); break;
    case Mutation::Duplicate: insert(cells, cell, random); break;
    case Mutation::Redirect: redirect_one(ranks, schedule.stage_count(), random); break;
    case Mutation::Move: {
      cells.erase(cells.begin() + static_cast<std::ptrdiff_t>(chosen));
      const auto from = static_cast<std::size_t>(&cells - ranks.data());
      insert(ranks[(from + 1 + below(ranks.size() - 1, random)) % ranks.size()], cell, random);
      break;
    }
  }
  Schedule mutant = schedule;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    mutant.ranks[rank].clear();
    for (const Cell& part : ranks[rank]) {
      mutant.ranks[rank].insert(mutant.ranks[rank].end(), part.begin(), part.end());
    }
  }
  return mutant;
}

}  // namespace pipewright
