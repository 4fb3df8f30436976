#pragma once

#include <memory>

#include "pipewright/runtime/world.h"

namespace pipewright::cli {

/// The processes that were started together with this one; null where it was started alone.
std::shared_ptr<World> join_world();

}  // namespace pipewright::cli
