#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "pipewright/schedule/schedule.h"

namespace pipewright {

/// Where each action stands in its rank's list, by stage and microbatch: 32
/// bytes for each pair, so that rules read it in one sweep.
///
/// REQUIRES: every action is on its stage's rank and within the schedule's counts.
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

  /// An action that stands in the lists a second time.
  struct Duplicate {
    Rank rank;
    std::uint32_t position;
  };
  const std::vector<Duplicate>& duplicates() const { return duplicates_; }

 private:
  std::size_t microbatches_;
  std::vector<Entry> entries_;
  std::vector<Duplicate> duplicates_;
};

}  // namespace pipewright
