#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/checkpoint/files.h"

namespace pipewright {

/// Where a tensor's bytes are in a file, and their checksum.
struct StoredBytes {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint32_t crc32 = 0;
};

/// The format's name of a dtype, `F32`. Throws Error for one that it does not have.
std::string dtype_name(at::ScalarType dtype);
/// Throws Error for a name that is none.
at::ScalarType dtype_named(const std::string& name);

/// Writes tensors, by distinct names, as a safetensors file that survives a crash. Where each is.
std::vector<StoredBytes> write_safetensors(Files& files, const std::filesystem::path& path,
                                           const std::vector<std::pair<std::string, at::Tensor>>& tensors);

/// A flat tensor on the CPU. Throws Error, that names the file, where it is too short or its bytes are not
/// those that were written.
at::Tensor read_stored(const std::filesystem::path& path, const StoredBytes& bytes, at::ScalarType dtype);

/// All tensors of a file, by name, on the CPU and mapped: what is written to them stays here. Throws Error,
/// without the file's name, for one that is damaged.
std::map<std::string, at::Tensor> read_safetensors(const std::filesystem::path& path);

}  // namespace pipewright
