#pragma once

#include <stdexcept>
#include <string>

namespace pipewright {

/// Base of every exception this library throws. The message says what is
/// wrong and, where there is one, what to do about it.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Text that is not in the expected format; `what()` names the place.
class ParseError : public Error {
 public:
  using Error::Error;
};

/// Arguments that do not fit together, such as a schedule that does not exist
/// or three stages a rank for a V schedule.
class ArgumentError : public Error {
 public:
  using Error::Error;
};

/// A schedule that breaks a rule where a valid one is required.
class InvalidSchedule : public Error {
 public:
  using Error::Error;
};

}  // namespace pipewright
