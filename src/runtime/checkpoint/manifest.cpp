#include "runtime/checkpoint/manifest.h"

#include <zlib.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "pipewright/base/error.h"

namespace pipewright {
namespace {

constexpr const char* kFormat = "pipewright checkpoint";
constexpr int kVersion = 1;
constexpr std::uintmax_t kLargestManifest = std::uintmax_t{1} << 32;

std::uint32_t text_checksum(const std::string& text) {
  return static_cast<std::uint32_t>(
      ::crc32(0, reinterpret_cast<const Bytef*>(text.data()), static_cast<uInt>(text.size())));
}

nlohmann::json entry_json(const StoredEntry& entry) {
  nlohmann::json parts = nlohmann::json::array();
  for (const StoredPart& part : entry.parts) {
    parts.push_back({{"file", part.file},
                     {"offset", part.offset},
                     {"length", part.length},
                     {"begin", part.bytes.begin},
                     {"end", part.bytes.end},
                     {"crc32", part.bytes.crc32}});
  }
  return {{"sizes", entry.sizes}, {"dtype", entry.dtype}, {"parts", parts}};
}

StoredEntry parse_entry(const nlohmann::json& json) {
  StoredEntry entry{.sizes = json.at("sizes").get<std::vector<std::int64_t>>(),
                    .dtype = json.at("dtype").get<std::string>(),
                    .parts = {}};
  const auto element = static_cast<std::uint64_t>(c10::elementSize(dtype_named(entry.dtype)));
  for (const nlohmann::json& each : json.at("parts")) {
    StoredPart part{.file = each.at("file").get<std::string>(),
                    .offset = each.at("offset").get<std::int64_t>(),
                    .length = each.at("length").get<std::int64_t>(),
                    .bytes = {.begin = each.at("begin").get<std::uint64_t>(),
                              .end = each.at("end").get<std::uint64_t>(),
                              .crc32 = each.at("crc32").get<std::uint32_t>()}};
    const bool fits = part.offset >= 0 && part.length >= 0 && part.bytes.end >= part.bytes.begin &&
                      part.bytes.end - part.bytes.begin == static_cast<std::uint64_t>(part.length) * element;
    // A name alone: what is loaded is in the checkpoint's own directory.
    const bool local = std::filesystem::path(part.file).filename() == part.file && part.file != "..";
    if (!fits || !local) throw Error("a part of a tensor that cannot be");
    entry.parts.push_back(std::move(part));
  }
  return entry;
}

}  // namespace

void Manifest::add(const Manifest& other) {
  for (const auto& [name, entry] : other.entries) {
    const auto [known, is_new] = entries.emplace(name, entry);
    if (is_new) continue;
    if (known->second.sizes != entry.sizes || known->second.dtype != entry.dtype) {
      throw Error("the processes have different tensors called '" + name + "'");
    }
    known->second.parts.insert(known->second.parts.end(), entry.parts.begin(), entry.parts.end());
  }
  values.insert(other.values.begin(), other.values.end());
}

std::string to_json(const Manifest& manifest) {
  nlohmann::json entries = nlohmann::json::object();
  for (const auto& [name, entry] : manifest.entries) entries[name] = entry_json(entry);
  return nlohmann::json{{"format", kFormat},
                        {"version", kVersion},
                        {"step", manifest.progress.step},
                        {"notes", manifest.progress.notes},
                        {"optimizer", manifest.optimizer},
                        {"entries", entries},
                        {"values", manifest.values}}
      .dump();
}

Manifest parse_manifest(const std::string& text, const std::filesystem::path& path) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  try {
    if (json.is_discarded() || json.at("format") != kFormat) {
      throw Error("it is none of a checkpoint");
    }
    if (json.at("version") != kVersion) {
      throw Error("it has version " + json.at("version").dump() + ", this program knows version " +
                  std::to_string(kVersion));
    }
    Manifest manifest;
    manifest.progress = {.step = json.at("step").get<std::int64_t>(),
                         .notes = json.at("notes").get<std::map<std::string, std::string>>()};
    manifest.optimizer = json.at("optimizer").get<std::string>();
    for (const auto& [name, entry] : json.at("entries").items()) manifest.entries[name] = parse_entry(entry);
    manifest.values = json.at("values").get<std::map<std::string, std::int64_t>>();
    return manifest;
  } catch (const std::exception& error) {
    throw Error(path.string() + " cannot be used: " + error.what());
  }
}

void write_manifest(Files& files, const std::filesystem::path& path, const Manifest& manifest) {
  const std::string text = to_json(manifest);
  // The checksum of the second line is the first.
  const std::string first = std::to_string(text_checksum(text)) + "\n";
  write_whole_file(files, path, [&](const auto& append) {
    append(first.data(), first.size());
    append(text.data(), text.size());
  });
}

Manifest read_manifest(const std::filesystem::path& path) {
  std::error_code none;
  if (std::filesystem::file_size(path, none) > kLargestManifest && !none) {
    throw Error(path.string() + " cannot be used: it is too large");
  }
  std::ifstream file(path, std::ios::binary);
  std::string first;
  std::getline(file, first);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (first != std::to_string(text_checksum(text))) {
    throw Error(path.string() + " is damaged: it is not what was saved");
  }
  return parse_manifest(text, path);
}

}  // namespace pipewright
