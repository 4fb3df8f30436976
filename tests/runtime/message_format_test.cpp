#include "runtime/transport/message_format.h"

#include <gtest/gtest.h>

#include "pipewright/base/error.h"
#include "runtime/compare.h"

namespace pipewright {
namespace {

/// The values after a way through bytes.
Values through_bytes(const Values& values) {
  const Layout layout = Layout::of(values);
  Prefix prefix;
  prefix.layout_bytes = static_cast<std::uint32_t>(layout_bytes(layout));
  prefix.payload_bytes = layout.payload_bytes();
  const at::Tensor buffer = torch::empty({static_cast<std::int64_t>(prefix.rest())}, at::kByte);
  auto* bytes = static_cast<std::byte*>(buffer.data_ptr());
  pack(values, layout, true, bytes);
  const Layout read = read_layout(bytes, prefix.layout_bytes);
  EXPECT_EQ(read, layout);
  return unpack(buffer, prefix.body_offset() - Prefix::kSize, read);
}

TEST(Message, BringsValuesOfEveryKind) {
  const Values values = {torch::randn({3, 4}),
                         torch::randn({2, 0, 5}),
                         torch::tensor({true, false}),
                         at::Tensor(),
                         torch::randn({4, 6}).t(),
                         torch::scalar_tensor(7, at::kLong),
                         torch::randn({3}, at::kBFloat16).set_requires_grad(true),
                         torch::randn({5}, at::kComplexDouble)};
  const Values read = through_bytes(values);
  ASSERT_EQ(read.size(), values.size());
  for (std::size_t at = 0; at < values.size(); ++at) {
    SCOPED_TRACE(at);
    ASSERT_EQ(read[at].defined(), values[at].defined());
    if (!values[at].defined()) continue;
    EXPECT_EQ(read[at].dtype(), values[at].dtype());
    EXPECT_EQ(read[at].requires_grad(), values[at].requires_grad());
    EXPECT_TRUE(read[at].equal(values[at]));
  }
}

TEST(Message, MayBeEmpty) { EXPECT_TRUE(through_bytes({}).empty()); }

TEST(Message, OfSparseTensorsIsRefused) {
  const Values values = {torch::eye(3).to_sparse()};
  Layout layout{.slots = {{.present = true, .dtype = at::kFloat, .requires_grad = false, .sizes = {3, 3}}}};
  std::vector<std::byte> bytes(layout.payload_bytes());
  EXPECT_THROW(pack(values, layout, false, bytes.data()), Error);
}

TEST(MessageLayout, ThatIsCutShortOrOutOfRangeIsRefused) {
  const Layout layout = Layout::of({torch::randn({3, 4}), at::Tensor()});
  std::vector<std::byte> bytes(layout_bytes(layout) + 2 * kAlignment + layout.payload_bytes());
  pack({torch::randn({3, 4}), at::Tensor()}, layout, true, bytes.data());
  for (std::size_t size = 0; size < layout_bytes(layout); ++size) {
    EXPECT_THROW(read_layout(bytes.data(), size), Error) << size;
  }
  // Any number of it as something impossible.
  for (std::size_t at = 0; at < layout_bytes(layout); at += 8) {
    std::vector<std::byte> bad = bytes;
    std::fill_n(bad.begin() + static_cast<std::ptrdiff_t>(at), 8, std::byte{0xff});
    EXPECT_THROW(read_layout(bad.data(), layout_bytes(layout)), Error) << at;
  }
}

TEST(MessageLayout, LargerThanItsMessageIsRefused) {
  const Layout layout = Layout::of({torch::randn({100})});
  EXPECT_THROW(unpack(torch::empty({256}, at::kByte), 0, layout), Error);
}

}  // namespace
}  // namespace pipewright
