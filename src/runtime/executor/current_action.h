#pragma once

#include <optional>
#include <utility>

#include "pipewright/base/ids.h"
#include "pipewright/schedule/action.h"

namespace pipewright {

/// Says, while it lives, which action this thread is running.
class CurrentAction {
 public:
  struct Running {
    Action action;
    /// The number, over all replicas, of this replica's microbatch 0.
    Microbatch first_microbatch;
  };

  explicit CurrentAction(Running running) : before_(std::exchange(slot(), running)) {}
  ~CurrentAction() { slot() = before_; }
  CurrentAction(const CurrentAction&) = delete;
  CurrentAction& operator=(const CurrentAction&) = delete;

  static std::optional<Running>& slot();

 private:
  std::optional<Running> before_;
};

}  // namespace pipewright
