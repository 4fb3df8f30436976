#pragma once

#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "pipewright/runtime/values.h"
#include "pipewright/schedule/action.h"

namespace pipewright {

/// The memory that a microbatch has on a stage: of what operators made there and of what came from other
/// stages, as long as anybody holds it. Knows it without holding it.
class HeldMemory {
 public:
  /// While it lives, what operators of this thread make becomes part of it. Null: nothing does.
  class Watch {
   public:
    explicit Watch(HeldMemory* memory);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    std::uint64_t callback_ = 0;
  };

  /// They came from another stage.
  void add(const Values& values);
  /// They go to another stage and are its memory, but for what is kept here, too.
  void leave_out(const Values& values);

  std::int64_t bytes() const;

 private:
  /// What is known of memory, also of such that was there before.
  struct Known {
    c10::weak_intrusive_ptr<c10::StorageImpl> memory;  // keeps its address from being used again
    bool counts;
  };
  /// `counts`: for memory that was not known.
  void see(const at::Tensor& tensor, bool counts);

  struct Observer;

  std::unordered_map<const c10::StorageImpl*, Known> known_;
};

/// What a stage holds for a microbatch. Measured in one step, and again when its inputs have other sizes:
/// to look at all operators takes time.
class StageMemory {
 public:
  /// A forward begins. Null where it is known already.
  HeldMemory* begin(const Values& inputs);
  /// The backward of that forward begins.
  HeldMemory* begun() { return known_ ? nullptr : &held_; }
  /// An action has ended; what is held then, in MiB.
  double end(Kind kind);

 private:
  HeldMemory held_;  // until it is known
  std::vector<std::vector<std::int64_t>> sizes_;
  std::map<Kind, double> after_;
  bool known_ = false;
};

}  // namespace pipewright
