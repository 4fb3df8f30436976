#pragma once

#include <torch/nn/module.h>

#include "frontend/trace/recording.h"
#include "pipewright/frontend/graph.h"

namespace pipewright {

/// Says of each node in which modules it was called, as far as that can be known from the parameters and
/// buffers that it uses.
///
/// A node that uses some is in the module that owns them; of several, in the innermost one that all are in.
/// Of a parameter with several names, the first use has the first name, the second the second. A node that
/// uses none comes after one that does, and is counted to it: to the outermost module of that which the next
/// one is not in. So what follows the last layer of `blocks.1` (dropout, the sum with the residual) is in
/// `blocks.1`, and a cut before `blocks.2` comes after it.
void name_modules(Graph& graph, const ModelState& state);

}  // namespace pipewright
