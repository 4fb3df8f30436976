// messages: in a lowered schedule, each boundary between ranks is crossed by
// one SEND after what it sends and one RECV before what needs it; neighbours on
// one rank exchange none; and what one rank sends to another is received there
// in the same order.

#include "schedule/ir/channels.h"
#include "schedule/validate/rules.h"

namespace pipewright {
namespace {

class MessageCheck {
 public:
  MessageCheck(const Subject& subject, Findings& findings) : subject_(subject), findings_(findings) {}

  void run() {
    const Schedule& schedule = subject_.schedule;
    const bool has_backward = subject_.has_backward();
    for (Stage stage = 0; stage < schedule.stage_count(); ++stage) {
      const bool next = crosses(stage, stage + 1);
      const bool previous = crosses(stage, stage - 1);
      for (Microbatch j = 0; j < schedule.microbatches; ++j) {
        check_send(stage, j, Kind::SendF, next);
        check_send(stage, j, Kind::SendB, has_backward && previous);
        check_receive(stage, j, Kind::RecvF, previous);
        check_receive(stage, j, Kind::RecvB, has_backward && next);
      }
      if (findings_.full()) return;
    }
  }

  /// REQUIRES: `run` found nothing.
  void check_channel_order() {
    const Channels channels(subject_.schedule.placement);
    std::vector<std::int64_t> last_sent(channels.size(), -1);
    for (Rank rank = 0; rank < subject_.schedule.rank_count(); ++rank) {
      const auto& actions = subject_.schedule.ranks[static_cast<std::size_t>(rank)];
      for (std::size_t i = 0; i < actions.size(); ++i) {
        if (!is_receive(actions[i].kind)) continue;
        const Action send = counterpart(actions[i]);
        const std::int64_t sent =
            subject_.index->at(send.stage, static_cast<Microbatch>(send.microbatch))[send.kind];
        std::int64_t& last = last_sent[channels.of(actions[i])];
        if (sent < last) {
          const Rank sender = subject_.rank_of(send.stage);
          findings_.add(rank, i,
                        to_text(actions[i]) + " is received after " +
                            to_text(counterpart(subject_.action(sender, static_cast<std::size_t>(last)))) +
                            ", but rank " + std::to_string(sender) + " sends it before");
        }
        last = std::max(last, sent);
      }
    }
  }

 private:
  bool crosses(Stage stage, Stage neighbour) const {
    return neighbour >= 0 && neighbour < subject_.schedule.stage_count() &&
           subject_.rank_of(stage) != subject_.rank_of(neighbour);
  }

  void check_send(Stage stage, Microbatch j, Kind kind, bool expected) {
    const ActionIndex::Entry& entry = subject_.index->at(stage, j);
    if (!check_presence(stage, j, kind, expected)) return;
    const std::uint32_t producer = kind == Kind::SendF ? entry[Kind::F] : entry.input_grad();
    if (entry[kind] < producer) report(stage, entry[kind], "before what it sends,", producer);
  }

  void check_receive(Stage stage, Microbatch j, Kind kind, bool expected) {
    const ActionIndex::Entry& entry = subject_.index->at(stage, j);
    if (!check_presence(stage, j, kind, expected)) return;
    const std::uint32_t consumer = kind == Kind::RecvF ? entry[Kind::F] : entry.input_grad();
    if (entry[kind] > consumer) report(stage, entry[kind], "after what needs it,", consumer);
  }

  void report(Stage stage, std::uint32_t position, const char* relation, std::uint32_t other) {
    const Rank rank = subject_.rank_of(stage);
    findings_.add(rank, position,
                  to_text(subject_.action(rank, position)) + " comes " + relation + " " +
                      to_text(subject_.action(rank, other)));
  }

  /// True if the message is there and should be.
  bool check_presence(Stage stage, Microbatch j, Kind kind, bool expected) {
    const ActionIndex::Entry& entry = subject_.index->at(stage, j);
    if (entry.has(kind) == expected) return expected;
    report_presence(stage, j, kind, expected);
    return false;
  }

  void report_presence(Stage stage, Microbatch j, Kind kind, bool expected) {
    const Rank rank = subject_.rank_of(stage);
    const std::string name = to_text(make_action(stage, kind, j));
    if (expected) {
      findings_.add_absence(rank, name, name + " is missing");
    } else {
      findings_.add(rank, subject_.index->at(stage, j)[kind], name + " has no peer on another rank");
    }
  }

  const Subject& subject_;
  Findings& findings_;
};

}  // namespace

void check_messages(const Subject& subject, Findings& findings) {
  if (subject.format != Format::Lowered) return;
  MessageCheck check(subject, findings);
  check.run();
  if (findings.empty()) check.check_channel_order();
}

}  // namespace pipewright
