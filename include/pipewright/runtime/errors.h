#pragma once

#include <exception>
#include <string>
#include <utility>

#include "pipewright/base/error.h"
#include "pipewright/schedule/action.h"

namespace pipewright {

/// Tensors that are not what a boundary carries; `what()` names stage, slot,
/// expected and got.
class BoundaryError : public Error {
 public:
  using Error::Error;
};

/// A wait that took longer than the time-out; `what()` names channel and peer.
class TimeoutError : public Error {
 public:
  using Error::Error;
};

/// A process that cannot be reached any more; `what()` names channel and peer.
class ConnectionError : public Error {
 public:
  using Error::Error;
};

/// A loss or a gradient that is not a finite number; `what()` names it.
class NonFiniteError : public Error {
 public:
  using Error::Error;
};

/// The first error of a step, with where it happened. The pipeline can be used
/// again; gradients may be partly accumulated, so zero them before the next step.
class StepError : public Error {
 public:
  StepError(int in_replica, Rank at_rank, Action at_action, const std::string& message,
            std::exception_ptr why)
      : Error(message), replica(in_replica), rank(at_rank), action(at_action), cause(std::move(why)) {}

  int replica;
  Rank rank;
  Action action;
  /// What the stage, the loss or the handler threw.
  std::exception_ptr cause;
};

}  // namespace pipewright
