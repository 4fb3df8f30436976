#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <initializer_list>
#include <optional>

#include "pipewright/base/ids.h"
#include "pipewright/schedule/action.h"

namespace pipewright {

/// The action that this thread is running for a pipeline, if any: tells a module
/// which microbatch it is called for.
std::optional<Action> current_action();

/// The microbatch of that action, if it has one, counted on from replica to replica: each microbatch
/// of a step has a number of its own.
std::optional<Microbatch> current_microbatch();

/// A CPU generator seeded by all numbers of `key`. A layer that draws from one made
/// of (seed, step, microbatch, layer) gives the same numbers under every schedule
/// and split; the process-wide generator is shared by all ranks' threads and does not.
at::Generator seeded_generator(std::initializer_list<std::uint64_t> key);

}  // namespace pipewright
