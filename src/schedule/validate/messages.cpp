// messages: in a lowered schedule, each boundary between ranks and each skip
// between ranks is crossed by one SEND after what it sends and one RECV before
// what needs it; stages on one rank exchange none; and what one rank sends to
// another is received there in the same order.

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
        const ActionIndex::Entry& entry = subject_.index->at(stage, j);
        check_send(make_action(stage, Kind::SendF, j), entry[Kind::SendF], next);
        check_send(make_action(stage, Kind::SendB, j), entry[Kind::SendB], has_backward && previous);
        check_receive(make_action(stage, Kind::RecvF, j), entry[Kind::RecvF], previous);
        check_receive(make_action(stage, Kind::RecvB, j), entry[Kind::RecvB], has_backward && next);
      }
      if (findings_.full()) return;
    }
    for (const Skip& skip : schedule.skips) {
      const bool cross = crosses(skip.from, skip.to);
      for (Microbatch j = 0; j < schedule.microbatches; ++j) {
        check_over_skip(make_message(skip.from, Kind::SendF, j, skip.to), cross);
        check_over_skip(make_message(skip.to, Kind::RecvF, j, skip.from), cross);
        check_over_skip(make_message(skip.to, Kind::SendB, j, skip.from), has_backward && cross);
        check_over_skip(make_message(skip.from, Kind::RecvB, j, skip.to), has_backward && cross);
      }
      if (findings_.full()) return;
    }
  }

  /// REQUIRES: `run` found nothing.
  void check_channel_order() {
    const Channels channels(subject_.schedule);
    std::vector<std::int64_t> last_sent(channels.size(), -1);
    for (Rank rank = 0; rank < subject_.schedule.rank_count(); ++rank) {
      const auto& actions = subject_.schedule.ranks[static_cast<std::size_t>(rank)];
      for (std::size_t i = 0; i < actions.size(); ++i) {
        if (!is_receive(actions[i].kind)) continue;
        const std::int64_t sent = subject_.index->send_of(actions[i]);
        std::int64_t& last = last_sent[channels.of(actions[i])];
        if (sent < last) {
          const Rank sender = subject_.rank_of(peer_stage(actions[i]));
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

  void check_over_skip(Action message, bool expected) {
    const std::uint32_t here = subject_.index->message(message);
    if (is_send(message.kind)) {
      check_send(message, here, expected);
    } else {
      check_receive(message, here, expected);
    }
  }

  /// `here`: the position of the message.
  void check_send(Action send, std::uint32_t here, bool expected) {
    if (!check_presence(send, here, expected)) return;
    const ActionIndex::Entry& entry = entry_of(send);
    const std::uint32_t producer = send.kind == Kind::SendF ? entry[Kind::F] : entry.input_grad();
    if (here < producer) report(send.stage, here, "before what it sends,", producer);
  }

  void check_receive(Action receive, std::uint32_t here, bool expected) {
    if (!check_presence(receive, here, expected)) return;
    const ActionIndex::Entry& entry = entry_of(receive);
    const std::uint32_t consumer = receive.kind == Kind::RecvF ? entry[Kind::F] : entry.input_grad();
    if (here > consumer) report(receive.stage, here, "after what needs it,", consumer);
  }

  const ActionIndex::Entry& entry_of(Action action) const {
    return subject_.index->at(action.stage, static_cast<Microbatch>(action.microbatch));
  }

  void report(Stage stage, std::uint32_t position, const char* relation, std::uint32_t other) {
    const Rank rank = subject_.rank_of(stage);
    findings_.add(rank, position,
                  to_text(subject_.action(rank, position)) + " comes " + relation + " " +
                      to_text(subject_.action(rank, other)));
  }

  /// True if the message, at position `here`, is there and should be.
  bool check_presence(Action message, std::uint32_t here, bool expected) {
    if ((here != ActionIndex::kAbsent) == expected) return expected;
    report_presence(message, here, expected);
    return false;
  }

  void report_presence(Action message, std::uint32_t here, bool expected) {
    const Rank rank = subject_.rank_of(message.stage);
    const std::string name = to_text(message);
    if (expected) {
      findings_.add_absence(rank, name, name + " is missing");
    } else {
      findings_.add(rank, here, name + " has no peer on another rank");
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
