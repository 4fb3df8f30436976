#pragma once

namespace pipewright {

/// Sets, for the whole process, what libtorch's process groups read from its environment when the first of
/// them is made, and what that does not say yet.
void prepare_libtorch();

}  // namespace pipewright
