#include "pipewright/flight/diagnose.h"

#include <algorithm>
#include <ranges>
#include <set>
#include <tuple>
#include <utility>

#include "flight/evidence.h"

namespace pipewright {
namespace {

/// `process 1, 2`: all but one of them.
std::string processes_text(const std::vector<int>& among, int but) {
  std::string text;
  for (const int process : among) {
    if (process != but) text += (text.empty() ? "process " : ", ") + std::to_string(process);
  }
  return text;
}

/// How sure it is that who is found there holds the others up: the surest first.
enum class Blame { Absent, Connection, Idle, Cycle, Runs };

struct End {
  Blame blame;
  Microseconds since;
  std::size_t found;  // how many before it
  Culprit culprit;
};

/// Whom a wait leads to, and the step that he is waited for in.
struct Edge {
  Node to;
  std::int64_t step = 0;
};

/// Follows every wait to where the chain of waits ends. The path is a list and not the call stack: as
/// long as there are ranks.
class Chains {
 public:
  Chains(const Evidence& evidence, const std::map<int, std::string>& absent)
      : evidence_(evidence), absent_(absent) {}

  void follow(const Node& start) {
    std::vector<Visit> path;
    enter({start}, path);
    while (!path.empty()) {
      Visit& visit = path.back();
      if (visit.followed < visit.edges.size()) {
        enter(Edge(visit.edges[visit.followed++]), path);
      } else {
        on_path_[visit.node] = false;
        path.pop_back();
      }
    }
  }

  std::vector<Culprit> culprits() && {
    std::ranges::sort(ends_, {}, [](const End& end) { return std::tuple(end.blame, end.since, end.found); });
    std::vector<Culprit> culprits;
    culprits.reserve(ends_.size());
    for (End& end : ends_) culprits.push_back(std::move(end.culprit));
    return culprits;
  }

 private:
  struct Visit {
    Node node;
    std::vector<Edge> edges;
    std::size_t followed = 0;
  };

  void enter(const Edge& edge, std::vector<Visit>& path) {
    // Of a process without a record nothing is known of its ranks.
    const Node node = evidence_.process(edge.to.process) ? edge.to : Node{edge.to.process};
    const auto [found, is_new] = on_path_.try_emplace(node, true);
    if (is_new) {
      path.push_back({node, edges_of(node, edge.step)});
    } else if (found->second) {
      end_in_cycle(node, path);
    }
  }

  /// Where a process as a whole waits for others that wait for its ranks, it is elsewhere in the program than
  /// they are.
  void end_in_cycle(const Node& node, const std::vector<Visit>& path) {
    for (auto visit = std::ranges::find(path, node, &Visit::node); visit != path.end(); ++visit) {
      const auto& wait = evidence_.process(visit->node.process)->wait;
      if (visit->node.rank >= 0 || !wait) continue;
      end(Blame::Cycle, 0, visit->node,
          "waits for the " + wait->what +
              " while others wait for it elsewhere: the processes do not make the same calls in the same "
              "order");
      return;
    }
    end(Blame::Cycle, 0, node, "waits for itself by way of the others: a deadlock");
  }

  std::vector<Edge> edges_of(const Node& node, std::int64_t step) {
    const ProcessRecord* record = evidence_.process(node.process);
    if (!record) return absence(node);
    return node.rank < 0 ? edges_of_process(*record) : edges_of_rank(node, *record, step);
  }

  std::vector<Edge> absence(const Node& node) {
    const auto why = absent_.find(node.process);
    end(Blame::Absent, 0, node,
        why == absent_.end() ? "has left no record: it was killed or stopped, or cannot be reached"
                             : why->second);
    return {};
  }

  std::vector<Edge> edges_of_rank(const Node& node, const ProcessRecord& record, std::int64_t step) {
    const auto unfinished = evidence_.unfinished(node);
    if (unfinished.empty()) return edges_of_resting(node, record, step);
    std::vector<Edge> edges;
    for (const RecordedAction* each : unfinished) {
      if (!each->waits()) {
        runs(node, *each, record);
      } else if (each->need == Need::Message) {
        follow_message(node, *each, edges);
      } else {
        follow_parameters(node, *each, edges);
      }
    }
    return edges;
  }

  /// A rank that has ended all that it began: where others wait for it in the very step that its process
  /// is in, it is what does not go on; otherwise it waits with its process for what comes next.
  std::vector<Edge> edges_of_resting(const Node& node, const ProcessRecord& record, std::int64_t step) {
    if (!record.in_step || record.wait || record.step < step) return {{{node.process}}};
    const RecordedAction* last = evidence_.last(node);
    if (!last) {
      end(Blame::Runs, record.since, node, "has begun nothing of step " + std::to_string(record.step));
    } else {
      end(Blame::Runs, last->end, node,
          "has begun nothing since its " + to_text(last->action) + " of step " + std::to_string(last->step) +
              " ended " + seconds_text(record.written - last->end) + " ago");
    }
    return {};
  }

  void runs(const Node& node, const RecordedAction& action, const ProcessRecord& record) {
    const Microseconds since = std::max(action.start, action.ready);
    end(Blame::Runs, since, node,
        "has been running " + to_text(action.action) + " of step " + std::to_string(action.step) + " for " +
            seconds_text(record.written - since));
  }

  void follow_message(const Node& node, const RecordedAction& waiting, std::vector<Edge>& edges) {
    const Node from = evidence_.sender(node, waiting);
    const RecordedAction* send = evidence_.sent(node, waiting);
    if (!send) {
      edges.push_back({from, waiting.step});
      return;
    }
    end(Blame::Connection, send->end, from,
        "has sent the message, and " + evidence_.name(node) +
            " has not got it: the connection between process " + std::to_string(from.process) +
            " and process " + std::to_string(node.process) + " does not deliver");
  }

  void follow_parameters(const Node& node, const RecordedAction& waiting, std::vector<Edge>& edges) {
    std::set<int> begun;
    const std::size_t before = edges.size();
    for (const Node& sharer : evidence_.sharers(node)) {
      if (evidence_.has_unsharded(sharer.process, node, waiting)) {
        begun.insert(sharer.process);
      } else {
        edges.push_back({sharer, waiting.step});
      }
    }
    if (edges.size() == before) all_have_begun(node, {begun.begin(), begun.end()});
  }

  std::vector<Edge> edges_of_process(const ProcessRecord& record) {
    const Node node{record.process};
    if (record.wait) return edges_of_wait(node, *record.wait);
    if (!record.in_step) {
      end(Blame::Idle, record.since, node,
          record.step == 0 ? "has not begun its first step"
                           : "is between steps: its step " + std::to_string(record.step) + " ended " +
                                 seconds_text(record.written - record.since) + " ago");
      return {};
    }
    std::vector<Edge> edges;
    const auto& ranks = evidence_.ranks();
    for (auto rank = ranks.lower_bound(node); rank != ranks.end() && rank->first.process == node.process;
         ++rank) {
      if (!evidence_.unfinished(rank->first).empty()) edges.push_back({rank->first, record.step});
    }
    if (edges.empty()) {
      end(Blame::Runs, record.since, node,
          "is in step " + std::to_string(record.step) + ", and its ranks have ended all that they began");
    }
    return edges;
  }

  std::vector<Edge> edges_of_wait(const Node& node, const ProcessWait& wait) {
    std::vector<Edge> edges;
    for (const int process : wait.among) {
      if (process != node.process && !waits_for_same(process, wait)) edges.push_back({{process}});
    }
    if (edges.empty()) all_have_begun(node, wait.among);
    return edges;
  }

  bool waits_for_same(int process, const ProcessWait& wait) const {
    const ProcessRecord* record = evidence_.process(process);
    return record && record->wait && record->wait->what == wait.what;
  }

  void all_have_begun(const Node& node, const std::vector<int>& among) {
    end(Blame::Connection, 0, node,
        "waits for what all have begun: a connection to " + processes_text(among, node.process) +
            " does not deliver");
  }

  void end(Blame blame, Microseconds since, const Node& node, const std::string& what) {
    ends_.push_back({blame,
                     since,
                     ends_.size(),
                     {.process = node.process,
                      .replica = node.replica,
                      .rank = node.rank,
                      .text = evidence_.name(node) + " " + what}});
  }

  const Evidence& evidence_;
  const std::map<int, std::string>& absent_;
  /// Of all that have been visited, whether they are on the path that is being followed.
  std::map<Node, bool> on_path_;
  std::vector<End> ends_;
};

std::string wait_text(const Evidence& evidence, const Node& node, const RecordedAction& waiting) {
  const Microseconds waited = evidence.process(node.process)->written - waiting.start;
  const std::string text = evidence.name(node) + " has waited " + seconds_text(waited) + " in " +
                           to_text(waiting.action) + " for the " + need_text(waiting);
  if (waiting.need == Need::Parameters) return text + " from the other replicas";
  return text + " from " + evidence.name(evidence.sender(node, waiting)) +
         (evidence.sent(node, waiting) ? ", which has sent them" : "");
}

std::string wait_text(const Evidence& evidence, const ProcessRecord& record, const ProcessWait& wait) {
  return evidence.name({record.process}) + " has waited " + seconds_text(record.written - wait.since) +
         " for the " + wait.what + " with " + processes_text(wait.among, record.process);
}

}  // namespace

Diagnosis diagnose(const std::vector<ProcessRecord>& records, const std::map<int, std::string>& absent) {
  const Evidence evidence(records);
  Chains chains(evidence, absent);
  Diagnosis diagnosis;
  for (const auto& [node, rank] : evidence.ranks()) {
    for (const RecordedAction& each : rank->actions) {
      if (!each.waits()) continue;
      diagnosis.waits.push_back(wait_text(evidence, node, each));
      chains.follow(node);
    }
  }
  for (const auto& [process, record] : evidence.processes()) {
    const auto& wait = record->wait;
    if (!wait) continue;
    diagnosis.waits.push_back(wait_text(evidence, *record, *wait));
    chains.follow({process});
  }
  for (const int process : std::views::keys(absent)) chains.follow({process});
  diagnosis.culprits = std::move(chains).culprits();
  return diagnosis;
}

}  // namespace pipewright
