#include "frontend/archive/archive_writer.h"

#include <caffe2/serialize/inline_container.h>
#include <unistd.h>

#include <exception>

#include "pipewright/base/error.h"
#include "runtime/checkpoint/files.h"

namespace pipewright {

void replace_file(const std::filesystem::path& file,
                  const std::function<void(const std::filesystem::path&)>& write) {
  const std::filesystem::path part = file.string() + ".part-" + std::to_string(getpid());
  try {
    write(part);
    system_files().rename(part, file);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(part, ignored);
    throw;
  }
  system_files().sync_directory(file.has_parent_path() ? file.parent_path() : ".");
}

void write_archive(const std::filesystem::path& file,
                   const std::function<void(caffe2::serialize::PyTorchStreamWriter&)>& write) {
  replace_file(file, [&](const std::filesystem::path& part) {
    write_whole_file(system_files(), part, [&](const auto& append) {
      // The writer ends the program where it cannot finish: it does not hear of failures.
      std::exception_ptr failure;
      caffe2::serialize::PyTorchStreamWriter writer([&](const void* bytes, std::size_t size) {
        try {
          if (!failure) append(bytes, size);
        } catch (...) {
          failure = std::current_exception();
        }
        return size;
      });
      write(writer);
      writer.writeEndOfFile();
      if (failure) std::rethrow_exception(failure);
    });
  });
}

}  // namespace pipewright
