#include "pipewright/frontend/tensor_file.h"

#include <c10/util/Exception.h>

#include <utility>
#include <vector>

#include "frontend/archive/archive_writer.h"
#include "frontend/tensors/pickled_tensors.h"
#include "pipewright/base/error.h"
#include "runtime/checkpoint/safetensors.h"

namespace pipewright {
namespace {

struct TensorFormat {
  const char* suffix;
  NamedTensors (*read)(const std::filesystem::path&);
  void (*write)(const std::filesystem::path&, const NamedTensors&);
};

void write_named_safetensors(const std::filesystem::path& file, const NamedTensors& tensors) {
  const std::vector<std::pair<std::string, at::Tensor>> all(tensors.begin(), tensors.end());
  replace_file(file,
               [&](const std::filesystem::path& part) { write_safetensors(system_files(), part, all); });
}

const TensorFormat& format_of(const std::filesystem::path& file) {
  static constexpr TensorFormat kFormats[] = {{".pt", read_pickled_tensors, write_pickled_tensors},
                                              {".safetensors", read_safetensors, write_named_safetensors}};
  for (const TensorFormat& format : kFormats) {
    if (file.extension() == format.suffix) return format;
  }
  throw Error("its name must end with .pt or .safetensors");
}

template <typename Work>
auto naming(const std::filesystem::path& file, Work work) {
  const std::string name = file.string() + ": ";
  try {
    return work();
  } catch (const c10::Error& error) {
    throw Error(name + error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw Error(name + error.what());
  }
}

}  // namespace

NamedTensors read_tensors(const std::filesystem::path& file) {
  return naming(file, [&] { return format_of(file).read(file); });
}

void write_tensors(const std::filesystem::path& file, const NamedTensors& tensors) {
  naming(file, [&] { format_of(file).write(file, tensors); });
}

}  // namespace pipewright
