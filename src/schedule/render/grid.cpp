#include <algorithm>
#include <span>

#include "pipewright/schedule/render.h"

namespace pipewright {
namespace {

std::vector<std::string> cell_texts(std::span<const Action> actions) {
  std::vector<std::string> cells;
  for (std::size_t at = 0; at < actions.size();) {
    const std::size_t size = cell_size(actions, at);
    cells.push_back(cell_text(actions.subspan(at, size)));
    at += size;
  }
  return cells;
}

void append_padded(const std::string& text, std::size_t width, std::string& out) {
  out += text;
  if (text.size() < width) out.append(width - text.size(), ' ');
}

}  // namespace

std::string render_grid(const Schedule& schedule) {
  std::vector<std::vector<std::string>> columns;
  std::size_t steps = 0;
  for (const auto& actions : schedule.ranks) {
    columns.push_back(cell_texts(actions));
    steps = std::max(steps, columns.back().size());
  }
  const std::size_t digits = std::to_string(steps == 0 ? 0 : steps - 1).size();
  const std::size_t label_width = std::string("Step ").size() + digits;
  std::vector<std::size_t> widths;
  for (const auto& column : columns) {
    widths.push_back(label_width);  // never narrower than the row labels
    for (const std::string& cell : column) widths.back() = std::max(widths.back(), cell.size());
  }

  std::string grid(label_width + 2, ' ');
  for (std::size_t rank = 0; rank < columns.size(); ++rank) {
    if (rank > 0) grid += ' ';
    append_padded("Rank " + std::to_string(rank), widths[rank], grid);
  }
  grid += '\n';
  for (std::size_t step = 0; step < steps; ++step) {
    const std::string number = std::to_string(step);
    grid += "Step " + std::string(digits - number.size(), '0') + number + ": ";
    for (std::size_t rank = 0; rank < columns.size(); ++rank) {
      if (rank > 0) grid += ' ';
      append_padded(step < columns[rank].size() ? columns[rank][step] : "", widths[rank], grid);
    }
    grid += '\n';
  }
  return grid;
}

}  // namespace pipewright
