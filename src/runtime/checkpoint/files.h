#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace pipewright {

/// The calls by which checkpoints reach the disk, one by one: tests let each of them fail. All throw
/// Error that names the file and the reason.
class Files {
 public:
  virtual ~Files() = default;

  /// A new file to write to.
  virtual int create(const std::filesystem::path& path) = 0;
  /// How many of the bytes were written: at least 1.
  virtual std::size_t write(int file, const void* bytes, std::size_t size) = 0;
  /// What was written survives a crash of the machine.
  virtual void sync(int file) = 0;
  virtual void close(int file) = 0;
  /// Closes a file that is not wanted any more.
  virtual void abandon(int file) noexcept = 0;

  virtual void make_directory(const std::filesystem::path& path) = 0;
  /// The names in a directory survive a crash of the machine.
  virtual void sync_directory(const std::filesystem::path& path) = 0;
  virtual void rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  /// With all that is inside of it; nothing where there is none.
  virtual void remove_tree(const std::filesystem::path& path) = 0;
};

/// Those of the system.
Files& system_files();

/// Writes a file, and waits until it survives a crash. `write_parts` is called with a function that
/// appends bytes.
template <typename WriteParts>
void write_whole_file(Files& files, const std::filesystem::path& path, WriteParts write_parts) {
  const int file = files.create(path);
  try {
    write_parts([&](const void* bytes, std::size_t size) {
      const auto* from = static_cast<const std::byte*>(bytes);
      while (size > 0) {
        const std::size_t written = files.write(file, from, size);
        from += written;
        size -= written;
      }
    });
    files.sync(file);
  } catch (...) {
    files.abandon(file);
    throw;
  }
  files.close(file);
}

}  // namespace pipewright
