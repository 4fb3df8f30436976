#include "runtime/checkpoint/safetensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "pipewright/base/error.h"
#include "runtime/checkpoint/mapped_file.h"

namespace pipewright {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::array kDtypes = {std::pair{at::kDouble, "F64"},
                                std::pair{at::kFloat, "F32"},
                                std::pair{at::kHalf, "F16"},
                                std::pair{at::kBFloat16, "BF16"},
                                std::pair{at::kLong, "I64"},
                                std::pair{at::kInt, "I32"},
                                std::pair{at::kShort, "I16"},
                                std::pair{at::kChar, "I8"},
                                std::pair{at::kByte, "U8"},
                                std::pair{at::kBool, "BOOL"},
                                std::pair{at::kUInt16, "U16"},
                                std::pair{at::kUInt32, "U32"},
                                std::pair{at::kUInt64, "U64"},
                                std::pair{at::kFloat8_e4m3fn, "F8_E4M3"},
                                std::pair{at::kFloat8_e5m2, "F8_E5M2"}};
constexpr std::size_t kLongestHeader = 100'000'000;  // the format's own limit

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

/// A tensor as the header describes it, of which the bytes are at its offsets behind `data`.
at::Tensor mapped_tensor(const nlohmann::json& entry, const std::shared_ptr<MappedFile>& file,
                         std::size_t data) {
  const at::ScalarType dtype = dtype_named(entry.at("dtype").get<std::string>());
  const auto shape = entry.at("shape").get<std::vector<std::int64_t>>();
  const auto offsets = entry.at("data_offsets").get<std::vector<std::uint64_t>>();
  std::uint64_t size = c10::elementSize(dtype);
  bool fits = offsets.size() == 2 && offsets[0] <= offsets[1] && offsets[1] <= file->size() - data;
  for (const std::int64_t each : shape) {
    fits &= each >= 0 && !__builtin_mul_overflow(size, static_cast<std::uint64_t>(each), &size);
  }
  if (!fits || offsets[1] - offsets[0] != size) throw ParseError("it does not fit into the file");
  return at::from_blob(file->begin() + data + offsets[0], shape, [file](void*) {}, at::TensorOptions(dtype));
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

std::map<std::string, at::Tensor> read_safetensors(const std::filesystem::path& path) {
  const auto file = std::make_shared<MappedFile>(path);
  std::uint64_t length = 0;
  if (file->size() < sizeof length) throw ParseError("it is too short to be a safetensors file");
  std::memcpy(&length, file->begin(), sizeof length);
  if (length > file->size() - sizeof length || length > kLongestHeader)
    throw ParseError("it is no safetensors file, or damaged: its header reaches beyond its end");
  const auto* text = reinterpret_cast<const char*>(file->begin()) + sizeof length;
  const auto header = nlohmann::json::parse(text, text + length, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) throw ParseError("it is no safetensors file, or damaged: its header is not JSON");
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    try {
      tensors[name] = mapped_tensor(entry, file, sizeof length + length);
    } catch (const std::exception& error) {
      throw ParseError("the tensor '" + name + "' cannot be read: " + error.what());
    }
  }
  return tensors;
}

}  // namespace pipewright
