#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pipewright/base/ids.h"
#include "pipewright/runtime/values.h"

namespace pipewright {

/// What the values of a message look like: all that is needed to make them from bytes.
struct Layout {
  struct Slot {
    bool present = false;
    at::ScalarType dtype = at::kFloat;
    bool requires_grad = false;
    /// Of the value at the sender; at the receiver it comes to his current device of that type.
    at::DeviceType device = at::kCPU;
    std::vector<std::int64_t> sizes = {};

    bool operator==(const Slot&) const = default;
  };
  std::vector<Slot> slots;

  bool operator==(const Layout&) const = default;

  static Layout of(const Values& values);
  /// Bytes of all values, each starting at a multiple of kAlignment.
  std::size_t payload_bytes() const;
};

/// A message on the wire is one buffer: a Prefix, the layout where it differs from that of
/// the message before, the values. Where the receiver, who has to say how much he
/// can take before he knows what comes, has said too little, the prefix comes alone and
/// the rest in a second message.
struct Prefix {
  std::uint32_t magic = kMagic;
  std::int32_t microbatch = 0;
  /// 0: as in the message before.
  std::uint32_t layout_bytes = 0;
  /// Layout and values come in a second message.
  std::uint32_t overflow = 0;
  std::uint64_t payload_bytes = 0;

  static constexpr std::uint32_t kMagic = 0x50495045;
  std::size_t rest() const { return body_offset() - kSize + payload_bytes; }
  /// Where the values start in a message that has all.
  std::size_t body_offset() const;

  static constexpr std::size_t kSize = 64;
};

/// Where a value may start: as libtorch's own allocator aligns memory.
inline constexpr std::size_t kAlignment = 64;

/// The rest of a message after its prefix. Values are made contiguous.
/// Throws Error for a value that is not a dense tensor.
void pack(const Values& values, const Layout& layout, bool with_layout, std::byte* to);

/// The values alone, in the same places, in memory of a device; perhaps that of a single value.
at::Tensor pack_on(c10::Device device, const Values& values, const Layout& layout);

std::size_t layout_bytes(const Layout& layout);
void write_layout(const Layout& layout, std::byte* to);
/// Throws Error for bytes that are no layout.
Layout read_layout(const std::byte* from, std::size_t size);

/// The values; those of the buffer's device share its memory from `offset` on.
/// Throws Error where the buffer is too small.
Values unpack(const at::Tensor& buffer, std::size_t offset, const Layout& layout);

}  // namespace pipewright
