#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>

namespace caffe2::serialize {
class PyTorchStreamReader;
}

namespace pipewright {

class MappedFile;

/// The records of a file that PyTorch has written: text, and bytes that are mapped.
class Archive {
 public:
  /// Throws Error.
  explicit Archive(const std::filesystem::path& file);
  ~Archive();
  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;

  bool has(const std::string& record) const;
  /// Throws Error where there is none, or it is longer than `most`.
  std::string text(const std::string& record, std::size_t most) const;

  /// A record as it stands in memory; what is written to it stays here.
  struct Bytes {
    std::shared_ptr<void> begin;
    std::size_t size = 0;
  };
  Bytes map(const std::string& record) const;

 private:
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> reader_;
  std::shared_ptr<MappedFile> mapping_;
};

}  // namespace pipewright
