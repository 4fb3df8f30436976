#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>

namespace pipewright {

using NamedTensors = std::map<std::string, at::Tensor>;

/// The tensors of a file by their names: `.pt`, as `torch.save` writes a dictionary of tensors, or
/// `.safetensors`. Dictionaries and lists inside of it are `batch.ids`, `states.0`. The tensors are on the
/// CPU and mapped from the file; what is written to them stays here. Nothing that a file says is ever
/// executed. Throws Error that names the file, and what in it cannot be read.
NamedTensors read_tensors(const std::filesystem::path& file);

/// Writes a file that Python reads, `torch.load(file, weights_only=True)` or `safetensors.torch.load_file`.
/// In a `.pt`, tensors that share memory do so again when they are read. An older file is there until the new
/// one is whole. Throws Error that names the file.
void write_tensors(const std::filesystem::path& file, const NamedTensors& tensors);

}  // namespace pipewright
