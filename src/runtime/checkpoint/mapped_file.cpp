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

MappedFile::MappedFile(const std::filesystem::path& file) {
  const int descriptor = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status{};
  if (descriptor < 0 || fstat(descriptor, &status) != 0) {
    const int error = errno;
    if (descriptor >= 0) close(descriptor);
    throw Error("cannot open it: " + std::string(std::strerror(error)));
  }
  if (!S_ISREG(status.st_mode) || status.st_size == 0) {
    close(descriptor);
    throw Error(S_ISREG(status.st_mode) ? "it is empty" : "it is no file");
  }
  size_ = static_cast<std::size_t>(status.st_size);
  begin_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE, descriptor, 0);
  const int error = errno;
  close(descriptor);
  if (begin_ == MAP_FAILED) throw Error("cannot map it: " + std::string(std::strerror(error)));
}

MappedFile::~MappedFile() { munmap(begin_, size_); }

}  // namespace pipewright
