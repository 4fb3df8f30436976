#include "runtime/transport/message_buffer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/alloc_cpu.h>
#include <sys/mman.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>

namespace pipewright {
namespace {

/// From here on the C library asks the system for every buffer, and gives it back when it is freed.
constexpr std::size_t kLarge = 32 << 20;
constexpr std::size_t kPage = 2 << 20;
/// Held for messages to come; others have to do without it.
constexpr std::size_t kMostUnused = 512 << 20;

/// Memory that was a message's and is nobody's now.
class Unused {
 public:
  /// Never destroyed: messages may outlive everything else.
  static Unused& instance() {
    static auto* const unused = new Unused;
    return *unused;
  }

  /// Null where there is none of that size.
  void* take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(blocks_, bytes, &Block::bytes);
    if (found == blocks_.end()) return nullptr;
    void* const memory = found->memory;
    bytes_ -= bytes;
    blocks_.erase(found);
    return memory;
  }

  void give(void* memory, std::size_t bytes) {
    if (bytes > kMostUnused) {
      c10::free_cpu(memory);
      return;
    }
    const std::lock_guard lock(mutex_);
    blocks_.push_back({.memory = memory, .bytes = bytes});
    bytes_ += bytes;
    while (bytes_ > kMostUnused) {  // the oldest first: messages may have another size now
      c10::free_cpu(blocks_.front().memory);
      bytes_ -= blocks_.front().bytes;
      blocks_.pop_front();
    }
  }

 private:
  struct Block {
    void* memory;
    std::size_t bytes;
  };
  std::mutex mutex_;
  std::deque<Block> blocks_;
  std::size_t bytes_ = 0;  // of them all
};

void* fresh_memory(std::size_t bytes) {
  void* const memory = c10::alloc_cpu(bytes);
  // In large pages, where the system has them.
  void* begin = memory;
  std::size_t length = bytes;
  if (std::align(kPage, kPage, begin, length)) madvise(begin, length / kPage * kPage, MADV_HUGEPAGE);
  return memory;
}

}  // namespace

at::Tensor make_message_buffer(std::size_t bytes) {
  const auto size = static_cast<std::int64_t>(bytes);
  if (bytes < kLarge || size < 0) return at::empty({size}, at::kByte);  // which refuses what is too much
  const std::size_t room = (bytes + kPage - 1) / kPage * kPage;
  void* memory = Unused::instance().take(room);
  if (!memory) memory = fresh_memory(room);
  const auto give_back = [room](void* of_message) { Unused::instance().give(of_message, room); };
  return at::from_blob(memory, {size}, give_back, at::TensorOptions(at::kByte));
}

}  // namespace pipewright
