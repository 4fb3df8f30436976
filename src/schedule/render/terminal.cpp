#include <algorithm>
#include <cmath>

#include "pipewright/schedule/render.h"
#include "schedule/render/style.h"

namespace pipewright {
namespace {

constexpr int kMostColumns = 4000;
constexpr char kWaitedMark = '.';
constexpr char kLastsMark = '?';
constexpr char kUnfinishedMark = '>';

std::string box_text(Action action) {
  return std::string(to_text(action.kind)) + std::to_string(action.microbatch);
}

/// Characters for one unit of time.
double scale_of(const Drawing& drawing, double length, int columns) {
  if (length <= 0) return 1;
  if (columns > 0) return columns / length;
  double shortest = length;
  std::size_t widest = 2;
  for (const auto& rank : drawing.timeline.ranks) {
    for (const TimedAction& timed : rank) {
      if (!is_compute(timed.action.kind) || timed.end <= timed.start) continue;
      shortest = std::min(shortest, timed.end - timed.start);
      widest = std::max(widest, box_text(timed.action).size());
    }
  }
  const double wanted = static_cast<double>(widest + 1) / shortest;
  return std::min(wanted, kMostColumns / length);
}

class TerminalLanes {
 public:
  TerminalLanes(const Drawing& drawing, const TerminalOptions& options)
      : drawing_(drawing),
        extent_(extent_of(drawing)),
        scale_(scale_of(drawing, extent_.length, options.columns)),
        color_(options.color),
        local_stage_(local_stages(drawing.timeline.placement)),
        waits_(waits_by_rank(drawing)),
        unfinished_(unfinished_of(drawing)) {}

  std::string draw(std::size_t number) const {
    const std::vector<TimedAction>& rank = drawing_.timeline.ranks[number];
    const std::vector<const Wait*>& waits = waits_[number];
    Line line;
    auto wait = waits.begin();
    for (std::size_t i = 0; i < rank.size(); ++i) {
      const TimedAction& timed = rank[i];
      if (!is_compute(timed.action.kind)) continue;
      double start = timed.start;
      double end = timed.end;
      split_block(rank, i, start, end);
      for (; wait != waits.end() && (*wait)->start < start; ++wait) append_wait(**wait, line);
      if (const std::size_t width = advance(start, end, line)) {
        append_box(timed.action, unfinished_.contains({number, i}), width, line.text);
      }
    }
    for (; wait != waits.end(); ++wait) append_wait(**wait, line);
    return line.text;
  }

 private:
  struct Line {
    std::string text;
    std::size_t columns = 0;
  };

  /// Fills the line up to a box and counts its columns, 0 where there is no room for it.
  std::size_t advance(double start, double end, Line& line) const {
    const std::size_t from = std::max(line.columns, column(start));
    const std::size_t to = std::max(from, column(end));
    if (to == from) return 0;
    line.text.append(from - line.columns, ' ');
    line.columns = to;
    return to - from;
  }

  /// The parts of a block share its time; drawn one behind the other.
  static void split_block(const std::vector<TimedAction>& rank, std::size_t i, double& start, double& end) {
    const double middle = (start + end) / 2;
    if (rank[i].action.fused_with_next() && i + 1 < rank.size() && rank[i + 1].start == start) end = middle;
    if (i > 0 && rank[i - 1].action.fused_with_next() && rank[i - 1].start == start) start = middle;
  }

  std::size_t column(double time) const {
    return static_cast<std::size_t>(std::lround((time - extent_.start) * scale_));
  }

  void append_box(Action action, bool unfinished, std::size_t width, std::string& line) const {
    std::string text = box_text(action).substr(0, width);
    text.append(width - text.size(), color_ ? ' ' : '-');
    if (unfinished) text.back() = kUnfinishedMark;
    if (!color_) {
      line += text;
      return;
    }
    const Color fill = color_of(action.kind, local_stage_[action.stage]);
    const bool dark = fill.red * 3 + fill.green * 6 + fill.blue < 1400;
    line += "\x1b[48;2;" + std::to_string(fill.red) + ";" + std::to_string(fill.green) + ";" +
            std::to_string(fill.blue) + ";38;5;" + (dark ? "231" : "16") + "m" + text + "\x1b[0m";
  }

  void append_wait(const Wait& wait, Line& line) const {
    const std::size_t width = advance(wait.start, wait.end, line);
    if (width == 0) return;
    std::string text(width, wait.lasts ? kLastsMark : kWaitedMark);
    const std::string what = is_compute(wait.action.kind) ? box_text(wait.action) : to_text(wait.action);
    if (wait.lasts && what.size() + 1 < width) text.replace(1, what.size(), what);
    line.text += color_ ? colored(wait.lasts ? kStillWaits : kWaited, text) : text;
  }

  static std::string colored(Color color, const std::string& text) {
    return "\x1b[38;2;" + std::to_string(color.red) + ";" + std::to_string(color.green) + ";" +
           std::to_string(color.blue) + "m" + text + "\x1b[0m";
  }

  const Drawing& drawing_;
  Extent extent_;
  double scale_;
  bool color_;
  std::vector<int> local_stage_;
  std::vector<std::vector<const Wait*>> waits_;
  Positions unfinished_;
};

/// What marks that not every timeline has stand for.
std::string legend(const Drawing& drawing) {
  std::string text;
  const auto add = [&](bool used, const std::string& what) {
    if (used) text += (text.empty() ? "" : ", ") + what;
  };
  const auto waits = [&](bool lasts) { return std::ranges::count(drawing.waits, lasts, &Wait::lasts) > 0; };
  add(waits(false), std::string(3, kWaitedMark) + " waited");
  add(waits(true), std::string(3, kLastsMark) + " still waits");
  add(!drawing.unfinished.empty(), kUnfinishedMark + std::string(" still runs"));
  return text.empty() ? text : text + "\n";
}

std::string metrics_text(const Drawing& drawing) {
  const Metrics metrics = measure(drawing.timeline, drawing.costs);
  return "makespan " + short_number(metrics.makespan) + ", ideal " + short_number(metrics.ideal) +
         ", bubble " + percent(metrics.bubble_rate_makespan) + " (by stage span " +
         percent(metrics.bubble_rate_span) + "), peak activation " + short_number(metrics.peak_activation()) +
         "\n";
}

}  // namespace

std::string render_terminal(const Drawing& drawing, const TerminalOptions& options) {
  const TerminalLanes lanes(drawing, options);
  std::string text = drawing.name + ": " + drawing.label + "\n";
  const std::size_t label_width = std::to_string(drawing.timeline.ranks.size() - 1).size();
  for (std::size_t rank = 0; rank < drawing.timeline.ranks.size(); ++rank) {
    const std::string number = std::to_string(rank);
    text += "rank " + std::string(label_width - number.size(), ' ') + number + " |";
    text += lanes.draw(rank);
    text += '\n';
  }
  text += legend(drawing);
  if (drawing.complete) text += metrics_text(drawing);
  return text;
}

}  // namespace pipewright
