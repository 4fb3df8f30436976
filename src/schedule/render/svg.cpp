#include <algorithm>
#include <array>

#include "pipewright/schedule/render.h"
#include "schedule/render/style.h"

namespace pipewright {
namespace {

constexpr double kLaneHeight = 26;
constexpr double kLaneGap = 4;
constexpr double kLabelWidth = 64;
constexpr double kHeader = 46;
constexpr double kFooter = 52;
constexpr double kCharWidth = 6.6;
constexpr double kMostWidth = 16000;
/// Measured boxes differ too much in length for each to have room for its text.
constexpr double kMostWidthOfPart = 1400;

/// Most control characters must not be in XML in any form.
bool is_xml(char c) { return static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t' || c == '\r'; }

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      default: result += is_xml(c) ? c : '?';
    }
  }
  return result;
}

class SvgPage {
 public:
  explicit SvgPage(const Drawing& drawing)
      : drawing_(drawing),
        extent_(extent_of(drawing)),
        local_stage_(local_stages(drawing.timeline.placement)),
        waits_(waits_by_rank(drawing)),
        unfinished_(unfinished_of(drawing)),
        scale_(scale()) {}

  std::string draw() {
    const double width = std::max(560.0, kLabelWidth + extent_.length * scale_ + 16);
    const double height =
        kHeader + static_cast<double>(drawing_.timeline.ranks.size()) * (kLaneHeight + kLaneGap) + kFooter;
    out_ = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + short_number(width) + "\" height=\"" +
           short_number(height) + "\" viewBox=\"0 0 " + short_number(width) + " " + short_number(height) +
           "\" font-family=\"system-ui, sans-serif\" font-size=\"11\">\n";
    out_ += "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n";
    if (!drawing_.waits.empty()) hatches();
    text(8, 18, drawing_.name, "font-size=\"15\" font-weight=\"600\" fill=\"#1c2733\"");
    text(8, 35, drawing_.label, "fill=\"#5a6672\"");
    for (std::size_t rank = 0; rank < drawing_.timeline.ranks.size(); ++rank) lane(rank);
    footer(height);
    return std::move(out_) + "</svg>\n";
  }

 private:
  /// Pixels for one unit of time: the shortest box has room for its text.
  double scale() const {
    double shortest = extent_.length;
    for (const auto& rank : drawing_.timeline.ranks) {
      for (const TimedAction& timed : rank) {
        if (is_compute(timed.action.kind) && timed.end > timed.start) {
          shortest = std::min(shortest, timed.end - timed.start);
        }
      }
    }
    if (shortest <= 0) return 1;
    return std::min(22 / shortest, (drawing_.complete ? kMostWidth : kMostWidthOfPart) / extent_.length);
  }

  void lane(std::size_t rank) {
    const double top = kHeader + static_cast<double>(rank) * (kLaneHeight + kLaneGap);
    text(8, top + 17, "rank " + std::to_string(rank), "fill=\"#1c2733\"");
    rect(kLabelWidth, top, extent_.length * scale_, kLaneHeight, "#eef1f4", "");
    for (const Wait* wait : waits_[rank]) wait_box(*wait, top);
    const auto& actions = drawing_.timeline.ranks[rank];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (is_compute(actions[i].action.kind)) box(actions, i, top, unfinished_.contains({rank, i}));
    }
  }

  void box(const std::vector<TimedAction>& actions, std::size_t i, double top, bool unfinished) {
    const TimedAction& timed = actions[i];
    const bool first_part = timed.action.fused_with_next();
    const bool second_part = i > 0 && actions[i - 1].action.fused_with_next();
    double y = top;
    double height = kLaneHeight;
    if (first_part || second_part) {  // the parts of an OVERLAP_F_B share their time: one over the other
      height /= 2;
      y += second_part ? height : 0;
    }
    const double x = kLabelWidth + (timed.start - extent_.start) * scale_;
    const double width = (timed.end - timed.start) * scale_;
    const Color fill = color_of(timed.action.kind, local_stage_[timed.action.stage]);
    const std::string name = to_text(timed.action) + (unfinished ? ", still runs" : "");
    rect(x, y, width, height, to_hex(fill), name);
    const std::string label = unfinished ? name : std::to_string(timed.action.microbatch);
    if (static_cast<double>(label.size()) * kCharWidth + 2 > width) return;
    const bool dark = fill.red * 3 + fill.green * 6 + fill.blue < 1400;
    text(x + width / 2, y + height / 2 + 4, label,
         std::string("text-anchor=\"middle\" fill=\"") + (dark ? "#ffffff" : "#10202c") + "\"");
  }

  static const char* hatch_of(bool lasts) { return lasts ? "lasts" : "waited"; }
  static std::string color_of_wait(bool lasts) { return to_hex(lasts ? kStillWaits : kWaited); }

  /// The patterns that waits are filled with.
  void hatches() {
    for (const bool lasts : {false, true}) {
      out_ += std::string("<pattern id=\"") + hatch_of(lasts) +
              "\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" "
              "patternTransform=\"rotate(45)\"><rect width=\"5\" height=\"5\" fill=\"#ffffff\"/>"
              "<rect width=\"1.2\" height=\"5\" fill=\"" +
              color_of_wait(lasts) + "\" fill-opacity=\"0.55\"/></pattern>\n";
    }
  }

  void wait_box(const Wait& wait, double top) {
    const double x = kLabelWidth + (wait.start - extent_.start) * scale_;
    const double width = (wait.end - wait.start) * scale_;
    hatched(x, top, width, kLaneHeight, wait.lasts, wait.text);
    const std::string label = to_text(wait.action);
    if (label.empty() || static_cast<double>(label.size()) * kCharWidth + 6 > width) return;
    text(x + width / 2, top + kLaneHeight / 2 + 4, label,
         "text-anchor=\"middle\" font-weight=\"600\" stroke=\"#ffffff\" stroke-width=\"4\" "
         "paint-order=\"stroke\" fill=\"" +
             (wait.lasts ? color_of_wait(true) : "#5a6672") + "\"");
  }

  void hatched(double x, double y, double width, double height, bool lasts, const std::string& title) {
    const double line = lasts ? 1.6 : 0.8;
    out_ += "<rect x=\"" + short_number(x + line / 2) + "\" y=\"" + short_number(y + line / 2) +
            "\" width=\"" + short_number(std::max(0.0, width - line)) + "\" height=\"" +
            short_number(height - line) + "\" fill=\"url(#" + hatch_of(lasts) + ")\" stroke=\"" +
            color_of_wait(lasts) + "\" stroke-width=\"" + short_number(line) + "\"><title>" + escaped(title) +
            "</title></rect>\n";
  }

  void footer(double height) {
    double x = 8;
    const double y = height - 34;
    for (const auto& [kind, name] : kLegend) {
      if (!uses(kind)) continue;
      rect(x, y, 14, 12, to_hex(color_of(kind, 0)), "");
      text(x + 19, y + 10, name, "fill=\"#1c2733\"");
      x += 34 + static_cast<double>(std::string_view(name).size()) * kCharWidth;
    }
    for (const bool lasts : {false, true}) {
      if (std::ranges::count(drawing_.waits, lasts, &Wait::lasts) == 0) continue;
      const std::string name = lasts ? "still waits" : "waited";
      hatched(x, y, 14, 12, lasts, name);
      text(x + 19, y + 10, name, "fill=\"#1c2733\"");
      x += 34 + static_cast<double>(name.size()) * kCharWidth;
    }
    if (drawing_.complete) metrics(height);
  }

  void metrics(double height) {
    const Metrics metrics = measure(drawing_.timeline, drawing_.costs);
    text(8, height - 8,
         "makespan " + short_number(metrics.makespan) + ", ideal " + short_number(metrics.ideal) +
             ", bubble " + percent(metrics.bubble_rate_makespan) + ", by stage span " +
             percent(metrics.bubble_rate_span) + ", peak activation " +
             short_number(metrics.peak_activation()),
         "fill=\"#5a6672\"");
  }

  struct LegendEntry {
    Kind kind;
    const char* name;
  };
  static constexpr std::array<LegendEntry, 4> kLegend = {{{Kind::F, "forward"},
                                                          {Kind::B, "backward"},
                                                          {Kind::I, "input gradient"},
                                                          {Kind::W, "weight gradient"}}};

  bool uses(Kind kind) const {
    return std::ranges::any_of(drawing_.timeline.ranks, [kind](const auto& rank) {
      return std::ranges::any_of(rank,
                                 [kind](const TimedAction& timed) { return timed.action.kind == kind; });
    });
  }

  void rect(double x, double y, double width, double height, const std::string& fill,
            const std::string& title) {
    out_ += "<rect x=\"" + short_number(x) + "\" y=\"" + short_number(y) + "\" width=\"" +
            short_number(width) + "\" height=\"" + short_number(height) + "\" fill=\"" + fill + "\"";
    out_ += title.empty() ? "/>\n"
                          : " stroke=\"#ffffff\" stroke-width=\"0.6\"><title>" + title + "</title></rect>\n";
  }

  void text(double x, double y, std::string_view content, const std::string& attributes) {
    out_ += "<text x=\"" + short_number(x) + "\" y=\"" + short_number(y) + "\" " + attributes + ">" +
            escaped(content) + "</text>\n";
  }

  const Drawing& drawing_;
  Extent extent_;
  std::vector<int> local_stage_;
  std::vector<std::vector<const Wait*>> waits_;
  Positions unfinished_;
  double scale_;
  std::string out_;
};

}  // namespace

std::string render_svg(const Drawing& drawing) { return SvgPage(drawing).draw(); }

}  // namespace pipewright
