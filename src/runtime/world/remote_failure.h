#pragma once

#include <string>

#include "pipewright/runtime/errors.h"

namespace pipewright {

/// A failure as the word that goes to the other processes.
std::string to_word(const StepError& error);

/// What another process's word means here.
StepError remote_failure(const std::string& word);

}  // namespace pipewright
