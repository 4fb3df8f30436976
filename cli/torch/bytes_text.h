#pragma once

#include <cstdint>
#include <string>

namespace pipewright::cli {

/// `1.5 MiB`.
std::string bytes_text(std::int64_t bytes);

}  // namespace pipewright::cli
