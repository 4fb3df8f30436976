#include "runtime/checkpoint/safetensors.h"

#include <ATen/ops/empty.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <bit>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "pipewright/base/error.h"

namespace pipewright {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::array kDtypes = {std::pair{at::kDouble, "F64"}, std::pair{at::kFloat, "F32"},
                                std::pair{at::kHalf, "F16"},   std::pair{at::kBFloat16, "BF16"},
                                std::pair{at::kLong, "I64"},   std::pair{at::kInt, "I32"},
                                std::pair{at::kShort, "I16"},  std::pair{at::kChar, "I8"},
                                std::pair{at::kByte, "U8"},    std::pair{at::kBool, "BOOL"}};

std::uint32_t checksum(const void* bytes, std::size_t size) {
  uLong crc = ::crc32(0, nullptr, 0);
  const auto* from = static_cast<const Bytef*>(bytes);
  while (size > 0) {
    const auto part = static_cast<uInt>(std::min<std::size_t>(size, std::numeric_limits<uInt>::max()));
    crc = ::crc32(crc, from, part);
    from += part;
    size -= part;
  }
  return static_cast<std::uint32_t>(crc);
}

}  // namespace

std::string dtype_name(at::ScalarType dtype) {
  for (const auto& [known, name] : kDtypes) {
    if (known == dtype) return name;
  }
  throw Error(std::string("tensors of type ") + c10::toString(dtype) + " cannot be saved");
}

at::ScalarType dtype_named(const std::string& name) {
  for (const auto& [dtype, known] : kDtypes) {
    if (known == name) return dtype;
  }
  throw Error("'" + name + "' is no type of numbers");
}

std::vector<StoredBytes> write_safetensors(Files& files, const std::filesystem::path& path,
                                           const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  nlohmann::json header = nlohmann::json::object();
  std::uint64_t end = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::uint64_t begin = end;
    end += tensor.nbytes();
    header[name] = {{"dtype", dtype_name(tensor.scalar_type())},
                    {"shape", tensor.sizes().vec()},
                    {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that what follows is aligned
  const std::uint64_t length = text.size();

  std::vector<StoredBytes> stored;
  write_whole_file(files, path, [&](const auto& append) {
    append(&length, sizeof length);
    append(text.data(), text.size());
    std::uint64_t at = sizeof length + length;
    for (const auto& [name, tensor] : tensors) {
      const at::Tensor bytes = tensor.detach().cpu().contiguous();
      append(bytes.const_data_ptr(), bytes.nbytes());
      stored.push_back({.begin = at,
                        .end = at + bytes.nbytes(),
                        .crc32 = checksum(bytes.const_data_ptr(), bytes.nbytes())});
      at += bytes.nbytes();
    }
  });
  return stored;
}

at::Tensor read_stored(const std::filesystem::path& path, const StoredBytes& bytes, at::ScalarType dtype) {
  const auto size = static_cast<std::int64_t>(bytes.end - bytes.begin);
  std::error_code error;
  const std::uintmax_t there = std::filesystem::file_size(path, error);
  if (error) throw Error("cannot read " + path.string() + ": " + error.message());
  if (bytes.end < bytes.begin || bytes.end > there) {
    throw Error(path.string() + " is damaged: it has " + std::to_string(there) + " bytes, and must have " +
                std::to_string(bytes.end));
  }
  at::Tensor tensor =
      at::empty({size / static_cast<std::int64_t>(c10::elementSize(dtype))}, at::TensorOptions(dtype));
  std::ifstream file(path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(bytes.begin));
  if (!file.read(static_cast<char*>(tensor.data_ptr()), size)) throw Error("cannot read " + path.string());
  if (checksum(tensor.const_data_ptr(), tensor.nbytes()) != bytes.crc32) {
    throw Error(path.string() + " is damaged: bytes " + std::to_string(bytes.begin) + " to " +
                std::to_string(bytes.end) + " are not what was saved");
  }
  return tensor;
}

}  // namespace pipewright
