#include <algorithm>
#include <cmath>

#include "pipewright/schedule/render.h"
#include "schedule/render/style.h"

namespace pipewright {
namespace {

constexpr int kMostColumns = 4000;

std::string box_text(Action action) {
  return std::string(to_text(action.kind)) + std::to_string(action.microbatch);
}

/// Characters for one unit of time.
double scale_of(const Drawing& drawing, double makespan, int columns) {
  if (makespan <= 0) return 1;
  if (columns > 0) return columns / makespan;
  double shortest = makespan;
  std::size_t widest = 2;
  for (const auto& rank : drawing.timeline.ranks) {
    for (const TimedAction& timed : rank) {
      if (!is_compute(timed.action.kind) || timed.end <= timed.start) continue;
      shortest = std::min(shortest, timed.end - timed.start);
      widest = std::max(widest, box_text(timed.action).size());
    }
  }
  const double wanted = static_cast<double>(widest + 1) / shortest;
  return std::min(wanted, kMostColumns / makespan);
}

class TerminalLane {
 public:
  TerminalLane(double origin, double scale, bool color) : origin_(origin), scale_(scale), color_(color) {}

  std::string draw(const std::vector<TimedAction>& rank, const std::vector<int>& local_stage) const {
    std::string line;
    std::size_t at = 0;
    for (std::size_t i = 0; i < rank.size(); ++i) {
      const TimedAction& timed = rank[i];
      if (!is_compute(timed.action.kind)) continue;
      double start = timed.start;
      double end = timed.end;
      split_block(rank, i, start, end);
      const std::size_t from = std::max(at, column(start));
      const std::size_t to = std::max(from, column(end));
      if (to == from) continue;
      line.append(from - at, ' ');
      append_box(timed.action, local_stage[timed.action.stage], to - from, line);
      at = to;
    }
    return line;
  }

 private:
  /// The parts of a block share its time; drawn one behind the other.
  static void split_block(const std::vector<TimedAction>& rank, std::size_t i, double& start, double& end) {
    const double middle = (start + end) / 2;
    if (rank[i].action.fused_with_next && i + 1 < rank.size() && rank[i + 1].start == start) end = middle;
    if (i > 0 && rank[i - 1].action.fused_with_next && rank[i - 1].start == start) start = middle;
  }

  std::size_t column(double time) const {
    return static_cast<std::size_t>(std::lround((time - origin_) * scale_));
  }

  void append_box(Action action, int local_stage, std::size_t width, std::string& line) const {
    std::string text = box_text(action).substr(0, width);
    text.append(width - text.size(), color_ ? ' ' : '-');
    if (!color_) {
      line += text;
      return;
    }
    const Color fill = color_of(action.kind, local_stage);
    const bool dark = fill.red * 3 + fill.green * 6 + fill.blue < 1400;
    line += "\x1b[48;2;" + std::to_string(fill.red) + ";" + std::to_string(fill.green) + ";" +
            std::to_string(fill.blue) + ";38;5;" + (dark ? "231" : "16") + "m" + text + "\x1b[0m";
  }

  double origin_;
  double scale_;
  bool color_;
};

}  // namespace

std::string render_terminal(const Drawing& drawing, const TerminalOptions& options) {
  const Metrics metrics = measure(drawing.timeline, drawing.costs);
  const double scale = scale_of(drawing, metrics.makespan, options.columns);
  const std::vector<int> local_stage = local_stages(drawing.timeline.placement);
  std::string text = drawing.name + ": " + drawing.label + "\n";
  const std::size_t label_width = std::to_string(drawing.timeline.ranks.size() - 1).size();
  for (std::size_t rank = 0; rank < drawing.timeline.ranks.size(); ++rank) {
    const std::string number = std::to_string(rank);
    text += "rank " + std::string(label_width - number.size(), ' ') + number + " |";
    text += TerminalLane(metrics.start, scale, options.color).draw(drawing.timeline.ranks[rank], local_stage);
    text += '\n';
  }
  text += "makespan " + short_number(metrics.makespan) + ", ideal " + short_number(metrics.ideal) +
          ", bubble " + percent(metrics.bubble_rate_makespan) + " (by stage span " +
          percent(metrics.bubble_rate_span) + "), peak activation " +
          short_number(metrics.peak_activation()) + "\n";
  return text;
}

}  // namespace pipewright
