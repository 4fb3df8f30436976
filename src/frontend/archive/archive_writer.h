#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>

namespace caffe2::serialize {
class PyTorchStreamWriter;
}

namespace pipewright {

/// Makes a file by `write`, which is given a path in the same folder; it gets its name when it is whole.
/// Throws Error.
void replace_file(const std::filesystem::path& file,
                  const std::function<void(const std::filesystem::path&)>& write);

/// Writes an archive of PyTorch: `write` adds its records. Replaces the file when it is whole. Throws Error.
void write_archive(const std::filesystem::path& file,
                   const std::function<void(caffe2::serialize::PyTorchStreamWriter&)>& write);

}  // namespace pipewright
