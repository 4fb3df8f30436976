#include "runtime/checkpoint/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "pipewright/base/error.h"

namespace pipewright {
namespace {

[[noreturn]] void refuse(const std::string& what, const std::filesystem::path& path) {
  throw Error("cannot " + what + " " + path.string() + ": " + std::strerror(errno));
}

/// Where a descriptor leads to, for messages.
std::filesystem::path path_of(int file) {
  std::error_code none;
  return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(file), none);
}

/// By hand: some builds of libtorch bring a `remove_all` of the standard library with them that crashes.
void remove_with_all_inside(const std::filesystem::path& path) {
  if (is_directory(symlink_status(path))) {
    for (const auto& each : std::filesystem::directory_iterator(path)) remove_with_all_inside(each.path());
  }
  std::filesystem::remove(path);
}

class SystemFiles final : public Files {
 public:
  int create(const std::filesystem::path& path) override {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0) refuse("create", path);
    return file;
  }

  std::size_t write(int file, const void* bytes, std::size_t size) override {
    constexpr std::size_t kMost = std::size_t{1} << 30;
    while (true) {
      const ssize_t written = ::write(file, bytes, std::min(size, kMost));
      if (written > 0) return static_cast<std::size_t>(written);
      if (written < 0 && errno != EINTR) refuse("write", path_of(file));
    }
  }

  void sync(int file) override {
    if (::fsync(file) != 0) refuse("write", path_of(file));
  }

  void close(int file) override {
    const std::filesystem::path path = path_of(file);
    if (::close(file) != 0 && errno != EINTR) refuse("write", path);
  }

  void abandon(int file) noexcept override { ::close(file); }

  void make_directory(const std::filesystem::path& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) throw Error("cannot create " + path.string() + ": " + error.message());
  }

  void sync_directory(const std::filesystem::path& path) override {
    const int directory = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) refuse("open", path);
    const bool synced = ::fsync(directory) == 0 || errno == EINVAL;  // some file systems have no such thing
    ::close(directory);
    if (!synced) refuse("write", path);
  }

  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    if (std::rename(from.c_str(), to.c_str()) != 0) refuse("rename to", to);
  }

  void remove_tree(const std::filesystem::path& path) override {
    try {
      remove_with_all_inside(path);
    } catch (const std::filesystem::filesystem_error& error) {
      throw Error("cannot remove " + error.path1().string() + ": " + error.code().message());
    }
  }
};

}  // namespace

Files& system_files() {
  static SystemFiles files;
  return files;
}

}  // namespace pipewright
