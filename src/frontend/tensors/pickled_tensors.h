#pragma once

#include "pipewright/frontend/tensor_file.h"

namespace pipewright {

// Dictionaries of tensors as `torch.save` writes them. Errors do not name the file.

NamedTensors read_pickled_tensors(const std::filesystem::path& file);
void write_pickled_tensors(const std::filesystem::path& file, const NamedTensors& tensors);

}  // namespace pipewright
