#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "pipewright/runtime/checkpoint.h"
#include "runtime/checkpoint/safetensors.h"

namespace pipewright {

/// A part of a saved tensor: so many elements from `offset` on, of the flattened whole.
struct StoredPart {
  std::string file;
  std::int64_t offset = 0;
  std::int64_t length = 0;
  StoredBytes bytes;
};

/// A saved tensor.
struct StoredEntry {
  std::vector<std::int64_t> sizes;
  std::string dtype;
  std::vector<StoredPart> parts;
};

/// What a checkpoint contains: the file that makes it one.
struct Manifest {
  TrainingProgress progress;
  /// Of the optimizer; empty without one.
  std::string optimizer;
  std::map<std::string, StoredEntry> entries;
  /// Numbers that go with entries: steps of the optimizer.
  std::map<std::string, std::int64_t> values;

  static constexpr const char* kFile = "checkpoint.json";

  /// Adds what another process has saved. Throws Error where both say different things of one entry.
  void add(const Manifest& other);
};

std::string to_json(const Manifest& manifest);
/// Throws Error, that names `path`, for a text that is none, or not what was saved.
Manifest parse_manifest(const std::string& text, const std::filesystem::path& path);

/// With a checksum of its own.
void write_manifest(Files& files, const std::filesystem::path& path, const Manifest& manifest);
Manifest read_manifest(const std::filesystem::path& path);

}  // namespace pipewright
