#include "frontend/archive/archive.h"

#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>

#include "pipewright/base/error.h"
#include "runtime/checkpoint/mapped_file.h"

namespace pipewright {

Archive::Archive(const std::filesystem::path& file) : mapping_(std::make_shared<MappedFile>(file)) {
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
