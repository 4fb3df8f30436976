#include "frontend/import/archive.h"

#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "pipewright/base/error.h"

namespace pipewright {

/// A whole file in memory; what is written to it stays in this process.
class Archive::Mapping {
 public:
  explicit Mapping(const std::filesystem::path& file) {
    const int descriptor = open(file.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status{};
    if (descriptor < 0 || fstat(descriptor, &status) != 0) {
      const int error = errno;
      if (descriptor >= 0) close(descriptor);
      throw Error("cannot open it: " + std::string(std::strerror(error)));
    }
    size_ = static_cast<std::size_t>(status.st_size);
    begin_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE, descriptor, 0);
    close(descriptor);
    if (begin_ == MAP_FAILED) throw Error("cannot map it: " + std::string(std::strerror(errno)));
  }
  ~Mapping() { munmap(begin_, size_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* begin() const { return static_cast<std::byte*>(begin_); }
  std::size_t size() const { return size_; }

 private:
  void* begin_ = nullptr;
  std::size_t size_ = 0;
};

Archive::Archive(const std::filesystem::path& file) : mapping_(std::make_shared<Mapping>(file)) {
  try {
    reader_ = std::make_unique<caffe2::serialize::PyTorchStreamReader>(file.string());
  } catch (const c10::Error& error) {
    throw Error("it is no archive of PyTorch, or is damaged: " + std::string(error.msg()));
  }
}

Archive::~Archive() = default;

bool Archive::has(const std::string& record) const { return reader_->hasRecord(record); }

Archive::Bytes Archive::map(const std::string& record) const {
  std::size_t offset = 0;
  std::size_t size = 0;
  try {
    offset = reader_->getRecordOffset(record);
    size = reader_->getRecordSize(record);
  } catch (const c10::Error& error) {
    throw Error("its record '" + record + "' cannot be read: " + std::string(error.msg()));
  }
  if (offset > mapping_->size() || size > mapping_->size() - offset) {
    throw Error("its record '" + record + "' reaches beyond its end");
  }
  return {std::shared_ptr<void>(mapping_, mapping_->begin() + offset), size};
}

std::string Archive::text(const std::string& record, std::size_t most) const {
  const Bytes bytes = map(record);
  if (bytes.size > most) throw Error("its record '" + record + "' is too long");
  return {static_cast<const char*>(bytes.begin.get()), bytes.size};
}

}  // namespace pipewright
