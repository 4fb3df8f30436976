#pragma once

#include <chrono>
#include <memory>

#include "runtime/transport/channel.h"

namespace pipewright {

/// Channels between threads of this process: a message is a pointer that changes hands.
std::unique_ptr<Transport> make_inproc_transport(std::chrono::milliseconds timeout);

}  // namespace pipewright
