#include "runtime/checkpoint/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "pipewright/base/error.h"

namespace pipewright {

MappedFile::MappedFile(const std::filesystem::path& file)
    : descriptor_(open(file.c_str(), O_RDONLY | O_CLOEXEC)) {
  struct stat status{};
  if (descriptor_ < 0 || fstat(descriptor_, &status) != 0) {
    const int error = errno;
    if (descriptor_ >= 0) close(descriptor_);
    throw Error("cannot open it: " + std::string(std::strerror(error)));
  }
  if (!S_ISREG(status.st_mode) || status.st_size == 0) {
    close(descriptor_);
    throw Error(S_ISREG(status.st_mode) ? "it is empty" : "it is no file");
  }
  size_ = static_cast<std::size_t>(status.st_size);
  map();
}

MappedFile::MappedFile(int descriptor, std::size_t size) : descriptor_(descriptor), size_(size) { map(); }

void MappedFile::map() {
  begin_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE, descriptor_, 0);
  if (begin_ != MAP_FAILED) return;
  const int error = errno;
  close(descriptor_);
  throw Error("cannot map it: " + std::string(std::strerror(error)));
}

std::shared_ptr<MappedFile> MappedFile::again() const {
  const int descriptor = fcntl(descriptor_, F_DUPFD_CLOEXEC, 0);
  if (descriptor < 0) throw Error("cannot map it: " + std::string(std::strerror(errno)));
  return std::shared_ptr<MappedFile>(new MappedFile(descriptor, size_));
}

MappedFile::~MappedFile() {
  munmap(begin_, size_);
  close(descriptor_);
}

}  // namespace pipewright
