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
  if (descriptor_ < 0) throw Error("cannot open it: " + std::string(std::strerror(errno)));
  map();
}

MappedFile::MappedFile(int descriptor) : descriptor_(fcntl(descriptor, F_DUPFD_CLOEXEC, 0)) {
  if (descriptor_ < 0) throw Error("cannot open it again: " + std::string(std::strerror(errno)));
  map();
}

void MappedFile::map() {
  struct stat status{};
  std::string wrong;
  if (fstat(descriptor_, &status) != 0) {
    wrong = "cannot open it: " + std::string(std::strerror(errno));
  } else if (!S_ISREG(status.st_mode)) {
    wrong = "it is no file";
  } else if (status.st_size == 0) {
    wrong = "it is empty";
  } else {
    size_ = static_cast<std::size_t>(status.st_size);
    begin_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE, descriptor_, 0);
    if (begin_ == MAP_FAILED) wrong = "cannot map it: " + std::string(std::strerror(errno));
  }
  if (wrong.empty()) return;
  close(descriptor_);
  throw Error(wrong);
}

MappedFile::~MappedFile() {
  munmap(begin_, size_);
  close(descriptor_);
}

}  // namespace pipewright
