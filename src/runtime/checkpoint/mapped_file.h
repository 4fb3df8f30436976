#pragma once

#include <cstddef>
#include <filesystem>

namespace pipewright {

/// A whole file in memory; what is written to it stays in this process.
class MappedFile {
 public:
  /// Throws Error that says why it cannot be read, without the file's name.
  explicit MappedFile(const std::filesystem::path& file);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::byte* begin() const { return static_cast<std::byte*>(begin_); }
  std::size_t size() const { return size_; }

 private:
  void* begin_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace pipewright
