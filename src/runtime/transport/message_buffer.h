#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace pipewright {

/// Bytes on the host for a message. The memory of large ones is used again when they are gone, by any thread,
/// and some of it is held until then: to get it fresh from the system, page by page, takes time.
at::Tensor make_message_buffer(std::size_t bytes);

}  // namespace pipewright
