#pragma once

#include <functional>
#include <iosfwd>
#include <string>

#include "pipewright/schedule/schedule.h"

namespace pipewright::cli {

/// Reads a schedule from a CSV file, or from standard input for "-".
Schedule read_schedule(const std::string& path);

/// The whole of a file, at most `most` bytes of it: throws where there are more.
std::string read_text(const std::string& path, std::size_t most);

/// Calls `write` with standard output, or with the file at `path` if it is not
/// empty; says where the file went. Throws if it could not be written.
void write_output(const std::string& path, const std::function<void(std::ostream&)>& write);
void write_output(const std::string& path, const std::string& text);

}  // namespace pipewright::cli
