#include <nlohmann/json.hpp>

#include "pipewright/schedule/render.h"
#include "schedule/render/page_text.h"

namespace pipewright {
namespace {

using nlohmann::json;

constexpr std::string_view kMarker = "__PIPEWRIGHT_DATA__";

struct RankJson {
  json actions = json::array();
  /// The cell that each position of the rank's list went into.
  std::vector<std::size_t> cell_of;
};

/// The fields of an entry.
constexpr std::size_t kText = 0;
constexpr std::size_t kEnd = 2;
constexpr std::size_t kParts = 3;

/// One entry a cell: [text, start, end], and the times of the parts where it has several.
RankJson cells_json(const std::vector<TimedAction>& rank) {
  RankJson result;
  std::vector<Action> cell;
  for (std::size_t at = 0; at < rank.size(); ++at) {
    if (cell.empty()) result.actions.push_back({"", rank[at].start, rank[at].end, json::array()});
    json& entry = result.actions.back();
    cell.push_back(rank[at].action);
    result.cell_of.push_back(result.actions.size() - 1);
    entry[kEnd] = std::max(entry[kEnd].get<double>(), rank[at].end);
    entry[kParts].push_back({rank[at].start, rank[at].end});
    if (rank[at].action.fused_with_next()) continue;
    entry[kText] = cell_text(cell);
    if (cell.size() == 1) entry.erase(kParts);
    cell.clear();
  }
  return result;
}

/// What only a whole run has.
void add_metrics(const Drawing& drawing, const std::vector<std::vector<std::size_t>>& cell_of, json& run) {
  const Metrics metrics = measure(drawing.timeline, drawing.costs);
  run["makespan"] = metrics.makespan;
  run["ideal"] = metrics.ideal;
  run["bubble_rate_makespan"] = metrics.bubble_rate_makespan;
  run["bubble_rate_span"] = metrics.bubble_rate_span;
  for (std::size_t rank = 0; rank < metrics.ranks.size(); ++rank) {
    json& entry = run["ranks"][rank];
    entry["span"] = metrics.ranks[rank].span;
    entry["busy"] = metrics.ranks[rank].busy;
    entry["idle"] = metrics.ranks[rank].idle;
    entry["peak_activation"] = metrics.ranks[rank].peak_activation;
    entry["memory"] = activation_curve(drawing.timeline.ranks[rank], drawing.costs);
  }
  run["critical_path"] = json::array();
  for (const auto& [rank, position] : critical_path(drawing.timeline)) {
    run["critical_path"].push_back({rank, cell_of[static_cast<std::size_t>(rank)][position]});
  }
}

json run_json(const Drawing& drawing) {
  json run = {{"name", drawing.name},
              {"label", drawing.label},
              {"source", drawing.source},
              {"stage_to_rank", drawing.timeline.placement},
              {"ranks", json::array()}};
  for (const auto& [from, to] : drawing.timeline.skips) run["skips"].push_back({from, to});
  std::vector<std::vector<std::size_t>> cell_of;
  for (const auto& rank : drawing.timeline.ranks) {
    RankJson cells = cells_json(rank);
    run["ranks"].push_back({{"actions", std::move(cells.actions)}});
    cell_of.push_back(std::move(cells.cell_of));
  }
  for (const Wait& wait : drawing.waits) {
    run["ranks"][static_cast<std::size_t>(wait.rank)]["waits"].push_back(
        {to_text(wait.action), wait.start, wait.end, wait.text, wait.lasts});
  }
  for (const auto& [rank, position] : drawing.unfinished) {
    const auto at = static_cast<std::size_t>(rank);
    run["ranks"][at]["unfinished"].push_back(cell_of[at][position]);
  }
  if (drawing.complete) add_metrics(drawing, cell_of, run);
  return run;
}

/// JSON inside a script element must neither close it nor open a comment.
std::string embeddable(const json& data) {
  std::string text;
  for (const char c : data.dump(-1, ' ', false, json::error_handler_t::replace)) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

}  // namespace

std::string render_html(const std::string& title, std::span<const Drawing> drawings) {
  json data = {{"title", title}, {"runs", json::array()}};
  for (const Drawing& drawing : drawings) data["runs"].push_back(run_json(drawing));
  std::string page(kPageText);
  return page.replace(page.find(kMarker), kMarker.size(), embeddable(data));
}

}  // namespace pipewright
