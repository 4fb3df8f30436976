#include "runtime/transport/message_buffer.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>
#include <thread>
#include <vector>

namespace pipewright {
namespace {

constexpr std::size_t kBytes = (40 << 20) + 5;

TEST(MessageBuffers, HaveTheirSize) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{7}, kBytes}) {
    const at::Tensor buffer = make_message_buffer(bytes);
    EXPECT_EQ(buffer.nbytes(), bytes);
    EXPECT_EQ(buffer.scalar_type(), at::kByte);
    buffer.fill_(1);
    EXPECT_EQ(buffer.sum().item<std::int64_t>(), static_cast<std::int64_t>(bytes));
  }
}

TEST(MessageBuffers, ThatWouldBeTooLargeAreRefused) {
  EXPECT_THROW(make_message_buffer(~std::size_t{0}), c10::Error);
}

TEST(MessageBuffers, UseTheMemoryOfMessagesThatAreGone) {
  at::Tensor first = make_message_buffer(kBytes);
  const void* const memory = first.data_ptr();
  at::Tensor part = first.narrow(0, 8, 8);
  first.reset();
  EXPECT_NE(make_message_buffer(kBytes).data_ptr(), memory);  // a part of it is still there
  part.reset();
  std::set<const void*> places;
  std::vector<at::Tensor> held;
  for (int count = 0; count < 6; ++count) {
    held.push_back(make_message_buffer(kBytes));
    places.insert(held.back().data_ptr());
  }
  EXPECT_TRUE(places.contains(memory));
  EXPECT_EQ(places.size(), held.size());  // no two share it
}

TEST(MessageBuffers, BelongToOneThreadAtATime) {
  std::vector<std::jthread> threads;
  for (int thread = 1; thread <= 4; ++thread) {
    threads.emplace_back([thread] {
      for (int count = 0; count < 20; ++count) {
        const at::Tensor buffer = make_message_buffer(kBytes);
        auto* const bytes = buffer.data_ptr<std::uint8_t>();
        for (std::size_t at = 0; at < kBytes; at += 4096) bytes[at] = static_cast<std::uint8_t>(thread);
        for (std::size_t at = 0; at < kBytes; at += 4096) ASSERT_EQ(bytes[at], thread);
      }
    });
  }
}

}  // namespace
}  // namespace pipewright
