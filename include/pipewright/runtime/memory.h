#pragma once

namespace pipewright {

/// Lets the C library keep the memory of freed tensors for the next ones, in the whole process.
/// Without it, what a step frees goes back to the system, and the next step gets it
/// again page by page, which costs small models several percent of their time. Meant for programs
/// that do little else than train; does nothing where the C library has no such setting.
void keep_freed_memory();

}  // namespace pipewright
