#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "pipewright/schedule/schedule.h"
#include "schedule/ir/channels.h"
#include "schedule/ir/edges.h"

namespace pipewright {

/// Where each action stands in its rank's list, by stage and microbatch: 32
/// bytes for each pair, so that rules read it in one sweep. Messages over skips
/// stand apart, by skip and microbatch.
///
/// REQUIRES: every action is on its stage's rank and within the schedule's counts; what Edges asks for.
class ActionIndex {
 public:
  static constexpr std::uint32_t kAbsent = std::numeric_limits<std::uint32_t>::max();

  /// Positions of one stage's actions for one microbatch, by kind.
  class Entry {
   public:
    Entry() { positions_.fill(kAbsent); }
    std::uint32_t operator[](Kind kind) const { return positions_[slot(kind)]; }
    std::uint32_t& operator[](Kind kind) { return positions_[slot(kind)]; }
    bool has(Kind kind) const { return (*this)[kind] != kAbsent; }
    /// Where the gradient of the input is computed: by B or by I.
    std::uint32_t input_grad() const { return has(Kind::B) ? (*this)[Kind::B] : (*this)[Kind::I]; }
    /// Where the gradient of the weights is complete: after B or after W.
    std::uint32_t weight_grad() const { return has(Kind::B) ? (*this)[Kind::B] : (*this)[Kind::W]; }

   private:
    static std::size_t slot(Kind kind) { return static_cast<std::size_t>(kind) - 1; }
    std::array<std::uint32_t, 8> positions_;
  };

  explicit ActionIndex(const Schedule& schedule);

  const Entry& at(Stage stage, Microbatch microbatch) const {
    return entries_[static_cast<std::size_t>(stage) * microbatches_ + static_cast<std::size_t>(microbatch)];
  }

  /// The position of a SEND or RECV; kAbsent if it is not there.
  std::uint32_t message(Action message) const {
    if (message.link == 0)
      return at(message.stage, static_cast<Microbatch>(message.microbatch))[message.kind];
    const std::size_t edge = edges_.of(message);
    return edge == edges_.size() ? kAbsent : skip_messages_[skip_slot(edge, message)];
  }

  /// That of the SEND that belongs to a RECV.
  std::uint32_t send_of(Action receive) const {
    if (receive.link != 0) [[unlikely]]
      return message(counterpart(receive));
    const bool forward = receive.kind == Kind::RecvF;
    return at(forward ? receive.stage - 1 : receive.stage + 1,
              static_cast<Microbatch>(receive.microbatch))[forward ? Kind::SendF : Kind::SendB];
  }

  /// An action that stands in the lists a second time.
  struct Duplicate {
    Rank rank;
    std::uint32_t position;
  };
  const std::vector<Duplicate>& duplicates() const { return duplicates_; }

 private:
  void place(std::uint32_t& position, Rank rank, std::uint32_t here);
  /// Of the four messages that a skip has for each microbatch.
  std::size_t skip_slot(std::size_t edge, Action message) const {
    const auto kind = static_cast<std::size_t>(message.kind) - static_cast<std::size_t>(Kind::SendF);
    return 4 * ((edge - first_skip_) * microbatches_ + message.microbatch) + kind;
  }

  Edges edges_;
  std::size_t first_skip_;
  std::size_t microbatches_;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> skip_messages_;
  std::vector<Duplicate> duplicates_;
};

}  // namespace pipewright
