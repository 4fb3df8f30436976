#include <nlohmann/json.hpp>

#include "pipewright/schedule/render.h"

namespace pipewright {
namespace {

using nlohmann::json;

constexpr double kMicroseconds = 1000;  // a unit of time is drawn as a millisecond
constexpr int kComputeLane = 0;
constexpr int kMessageLane = 1;

json metadata(std::size_t rank, int lane, const char* what, const std::string& name) {
  return {{"ph", "M"}, {"pid", rank}, {"tid", lane}, {"name", what}, {"args", {{"name", name}}}};
}

json span_event(std::size_t rank, const TimedAction& timed) {
  const Action action = timed.action;
  const bool compute = is_compute(action.kind);
  json args = {{"stage", action.stage}};
  if (has_microbatch(action.kind)) args["microbatch"] = action.microbatch;
  if (action.skipped() > 0) args["peer_stage"] = peer_stage(action);
  return {{"ph", "X"},
          {"pid", rank},
          {"tid", compute ? kComputeLane : kMessageLane},
          {"name", to_text(action)},
          {"cat", compute ? "compute" : "communication"},
          {"ts", timed.start * kMicroseconds},
          {"dur", (timed.end - timed.start) * kMicroseconds},
          {"args", std::move(args)}};
}

}  // namespace

std::string render_trace(const Drawing& drawing) {
  json events = json::array();
  for (std::size_t rank = 0; rank < drawing.timeline.ranks.size(); ++rank) {
    const auto& actions = drawing.timeline.ranks[rank];
    events.push_back(metadata(rank, kComputeLane, "process_name", "rank " + std::to_string(rank)));
    events.push_back(metadata(rank, kComputeLane, "thread_name", "compute"));
    events.push_back(metadata(rank, kMessageLane, "thread_name", "communication"));
    for (const TimedAction& timed : actions) {
      if (timed.action.kind != Kind::Bubble) events.push_back(span_event(rank, timed));
    }
    for (const auto& [time, held] : activation_curve(actions, drawing.costs)) {
      events.push_back({{"ph", "C"},
                        {"pid", rank},
                        {"name", "activation"},
                        {"ts", time * kMicroseconds},
                        {"args", {{"held", held}}}});
    }
  }
  return json{{"traceEvents", std::move(events)},
              {"displayTimeUnit", "ms"},
              {"otherData", {{"name", drawing.name}, {"label", drawing.label}, {"source", drawing.source}}}}
             .dump(-1, ' ', false, json::error_handler_t::replace) +
         "\n";
}

}  // namespace pipewright
