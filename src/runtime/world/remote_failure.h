#pragma once

#include <string>

#include "pipewright/runtime/errors.h"
#include "runtime/world/mesh.h"

namespace pipewright {

/// `rank 1, 1F0 (stage 1): `, with the replica where there are several.
std::string place_text(Position position, Action action, int replicas);

/// A failure as the word that goes to the other processes.
std::string to_word(Position position, Action action, const std::string& what);

/// The same failure, with more said about it.
std::string with_text(const std::string& word, const std::string& more);

/// What a word means here.
StepError remote_failure(const std::string& word);

}  // namespace pipewright
