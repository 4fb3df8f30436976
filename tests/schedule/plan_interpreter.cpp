#include "schedule/plan_interpreter.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace pipewright {
namespace {

bool uses(const Schedule& schedule, Kind kind) {
  return std::ranges::any_of(schedule.ranks, [kind](const auto& actions) {
    return std::ranges::any_of(actions, [kind](Action action) { return action.kind == kind; });
  });
}

class Machine {
 public:
  Machine(const Schedule& schedule, const Schedule& intended)
      : schedule_(schedule),
        intended_(intended),
        lowered_(is_lowered(intended)),
        sharded_(uses(intended, Kind::Unshard)),
        reduces_(uses(intended, Kind::ReduceGrad)),
        trains_(uses(intended, Kind::B) || uses(intended, Kind::I)),
        at_(schedule.ranks.size()) {}

  Outcome run() {
    for (bool progress = true; progress && !wrong_;) {
      progress = false;
      for (Rank rank = 0; rank < schedule_.rank_count() && !wrong_; ++rank) progress |= step(rank);
    }
    if (wrong_) return Outcome::Wrong;
    for (Rank rank = 0; rank < schedule_.rank_count(); ++rank) {
      if (!ended(rank)) return Outcome::Hangs;
    }
    return is_complete() ? Outcome::Right : Outcome::Wrong;
  }

 private:
  using Datum = std::tuple<Kind, Stage, Microbatch>;  // F, I (input gradient) or W of a stage
  using Delivery = std::pair<Datum, Stage>;           // and the stage that it was brought to

  bool ended(Rank rank) const { return at_[index(rank)] == list(rank).size(); }
  static std::size_t index(Rank rank) { return static_cast<std::size_t>(rank); }
  const std::vector<Action>& list(Rank rank) const { return schedule_.ranks[index(rank)]; }
  Action head(Rank rank) const { return list(rank)[at_[index(rank)]]; }
  Rank owner(Stage stage) const { return intended_.placement[static_cast<std::size_t>(stage)]; }
  bool exists(Stage stage) const { return stage >= 0 && stage < intended_.stage_count(); }

  /// True if something happened.
  bool step(Rank rank) {
    if (ended(rank)) return false;
    const Action action = head(rank);
    if (action.kind == Kind::Bubble) return advance(rank, 1);
    if (!exists(action.stage) || owner(action.stage) != rank) return fail();
    if (is_compute(action.kind)) return compute(rank);
    if (is_send(action.kind)) return send(rank, action);
    if (is_receive(action.kind)) return false;  // the sender moves both
    return collective(rank, action);
  }

  bool compute(Rank rank) {
    const std::size_t size = cell_size(list(rank), at_[index(rank)]);
    for (std::size_t i = 0; i < size; ++i) {
      const Action action = list(rank)[at_[index(rank)] + i];
      if (!exists(action.stage) || owner(action.stage) != rank || !is_compute(action.kind)) return fail();
      if (!input_is_there(rank, action)) return false;
    }
    std::vector<Datum> results;
    for (std::size_t i = 0; i < size; ++i) {
      if (!compute_part(list(rank)[at_[index(rank)] + i], results)) return fail();
    }
    done_.insert(results.begin(), results.end());  // parts do not see each other's results
    return advance(rank, size);
  }

  /// False if it must be waited for; in a plan, data that no receive has brought never comes.
  bool input_is_there(Rank rank, Action action) {
    const auto j = static_cast<Microbatch>(action.microbatch);
    const bool forward = action.kind == Kind::F;
    if (!forward && action.kind != Kind::B && action.kind != Kind::I) return true;
    std::vector<Stage> sources = {forward ? action.stage - 1 : action.stage + 1};
    for (const auto& [from, to] : intended_.skips) {
      if (forward && to == action.stage) sources.push_back(from);
      if (!forward && from == action.stage) sources.push_back(to);
    }
    return std::ranges::all_of(sources, [&](Stage from) {
      if (!exists(from)) return true;
      const Datum datum{forward ? Kind::F : Kind::I, from, j};
      if (lowered_ && owner(from) != rank) return received_.contains({datum, action.stage}) || fail();
      return done_.contains(datum) || (lowered_ && fail());
    });
  }

  /// Whether a message can go between the two stages: they are neighbours, or the model has a skip.
  bool joined(Stage a, Stage b) const {
    const auto [from, to] = std::minmax(a, b);
    return from + 1 == to || std::ranges::count(intended_.skips, Skip{from, to}) == 1;
  }

  bool compute_part(Action action, std::vector<Datum>& results) {
    const Stage stage = action.stage;
    const auto j = static_cast<Microbatch>(action.microbatch);
    if (j >= intended_.microbatches) return false;
    if (sharded_ && !gathered_.contains(stage)) return false;
    const auto once = [&](Kind kind) {
      const Datum datum{kind, stage, j};
      if (done_.contains(datum)) return false;
      results.push_back(datum);
      return true;
    };
    switch (action.kind) {
      case Kind::F: return once(Kind::F);
      case Kind::B: return done_.contains({Kind::F, stage, j}) && once(Kind::I) && once(Kind::W);
      case Kind::I: return done_.contains({Kind::F, stage, j}) && once(Kind::I);
      default: return done_.contains({Kind::I, stage, j}) && once(Kind::W);
    }
  }

  bool send(Rank rank, Action action) {
    const bool forward = action.kind == Kind::SendF;
    const Stage to = peer_stage(action);
    const auto j = static_cast<Microbatch>(action.microbatch);
    const Datum datum{forward ? Kind::F : Kind::I, action.stage, j};
    if (!exists(to) || !joined(action.stage, to) || owner(to) == rank || !done_.contains(datum))
      return fail();
    const Rank peer = owner(to);
    if (ended(peer) || !is_receive(head(peer).kind)) return false;
    const Action receive = head(peer);
    const Stage expected_from = peer_stage(receive);
    if (!exists(expected_from) || !exists(receive.stage) || owner(receive.stage) != peer) return fail();
    if (owner(expected_from) != rank) return false;  // it listens to another rank now
    const bool same = (receive.kind == Kind::RecvF) == forward && receive.stage == to &&
                      expected_from == action.stage && receive.microbatch == action.microbatch;
    if (!same || !received_.insert({datum, to}).second) return fail();
    advance(peer, 1);
    return advance(rank, 1);
  }

  bool collective(Rank rank, Action action) {
    const Stage stage = action.stage;
    switch (action.kind) {
      case Kind::Unshard:
        if (!gathered_.insert(stage).second) return fail();
        break;
      case Kind::Reshard:
        if (gathered_.erase(stage) == 0) return fail();
        break;
      default:
        for (Microbatch j = 0; j < intended_.microbatches; ++j) {
          if (!done_.contains({Kind::W, stage, j})) return fail();
        }
        if (!reduced_.insert(stage).second) return fail();
    }
    return advance(rank, 1);
  }

  bool is_complete() const {
    for (Stage stage = 0; stage < intended_.stage_count(); ++stage) {
      for (Microbatch j = 0; j < intended_.microbatches; ++j) {
        if (!done_.contains({Kind::F, stage, j})) return false;
        if (trains_ && !done_.contains({Kind::W, stage, j})) return false;
      }
      if (reduces_ && !reduced_.contains(stage)) return false;
    }
    return true;
  }

  bool advance(Rank rank, std::size_t count) {
    at_[index(rank)] += count;
    return true;
  }
  bool fail() {
    wrong_ = true;
    return false;
  }

  const Schedule& schedule_;
  const Schedule& intended_;
  bool lowered_;
  bool sharded_;
  bool reduces_;
  bool trains_;
  bool wrong_ = false;
  std::vector<std::size_t> at_;
  std::set<Datum> done_;
  std::set<Delivery> received_;
  std::set<Stage> gathered_;
  std::set<Stage> reduced_;
};

}  // namespace

Outcome interpret(const Schedule& schedule, const Schedule& intended) {
  return Machine(schedule, intended).run();
}

}  // namespace pipewright
