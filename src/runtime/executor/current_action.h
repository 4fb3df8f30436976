#pragma once

#include <optional>
#include <utility>

#include "pipewright/schedule/action.h"

namespace pipewright {

/// Says, while it lives, which action this thread is running.
class CurrentAction {
 public:
  explicit CurrentAction(Action action) : before_(std::exchange(slot(), action)) {}
  ~CurrentAction() { slot() = before_; }
  CurrentAction(const CurrentAction&) = delete;
  CurrentAction& operator=(const CurrentAction&) = delete;

  static std::optional<Action>& slot();

 private:
  std::optional<Action> before_;
};

}  // namespace pipewright
