#include "runtime/transport/message_format.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstring>
#include <string>

#include "pipewright/base/error.h"
#include "pipewright/runtime/boundary.h"

namespace pipewright {
namespace {

constexpr std::size_t kMostSlots = 1 << 16;
constexpr std::size_t kMostDimensions = 64;
constexpr std::int64_t kMostElements = std::int64_t{1} << 42;  // the bytes of all slots can still be counted

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::size_t bytes_of(const Layout::Slot& slot) {
  if (!slot.present) return 0;
  std::size_t bytes = c10::elementSize(slot.dtype);
  for (const std::int64_t size : slot.sizes) bytes *= static_cast<std::size_t>(size);
  return bytes;
}

void check_dense(const at::Tensor& value) {
  if (value.layout() == at::kStrided && !c10::isQIntType(value.scalar_type())) return;
  throw Error("only dense tensors can be sent to another process, not " + to_text(value));
}

/// Writes numbers one after the other.
class Writer {
 public:
  explicit Writer(std::byte* to) : to_(to) {}
  void number(std::int64_t value) {
    std::memcpy(to_, &value, sizeof value);
    to_ += sizeof value;
  }

 private:
  std::byte* to_;
};

/// Reads numbers one after the other and refuses to go past the end.
class Reader {
 public:
  Reader(const std::byte* from, std::size_t size) : from_(from), left_(size) {}
  std::int64_t number(std::int64_t least, std::int64_t most) {
    std::int64_t value = 0;
    if (left_ < sizeof value) throw Error("a message's layout ends too early");
    std::memcpy(&value, from_, sizeof value);
    from_ += sizeof value;
    left_ -= sizeof value;
    if (value < least || value > most) {
      throw Error("a message's layout has " + std::to_string(value) + " where at most " +
                  std::to_string(most) + " is possible");
    }
    return value;
  }

 private:
  const std::byte* from_;
  std::size_t left_;
};

}  // namespace

std::size_t Prefix::body_offset() const { return kSize + aligned(layout_bytes); }

Layout Layout::of(const Values& values) {
  Layout layout;
  layout.slots.reserve(values.size());
  for (const at::Tensor& value : values) {
    if (!value.defined()) {
      layout.slots.emplace_back();
    } else {
      layout.slots.push_back({.present = true,
                              .dtype = value.scalar_type(),
                              .requires_grad = value.requires_grad(),
                              .device = value.device().type(),
                              .sizes = value.sizes().vec()});
    }
  }
  return layout;
}

std::size_t Layout::payload_bytes() const {
  std::size_t bytes = 0;
  for (const Slot& slot : slots) bytes += aligned(bytes_of(slot));
  return bytes;
}

std::size_t layout_bytes(const Layout& layout) {
  std::size_t numbers = 1;
  for (const Layout::Slot& slot : layout.slots) numbers += 5 + slot.sizes.size();
  return numbers * sizeof(std::int64_t);
}

void write_layout(const Layout& layout, std::byte* to) {
  Writer writer(to);
  writer.number(static_cast<std::int64_t>(layout.slots.size()));
  for (const Layout::Slot& slot : layout.slots) {
    writer.number(slot.present ? 1 : 0);
    writer.number(static_cast<std::int64_t>(slot.dtype));
    writer.number(slot.requires_grad ? 1 : 0);
    writer.number(static_cast<std::int64_t>(slot.device));
    writer.number(static_cast<std::int64_t>(slot.sizes.size()));
    for (const std::int64_t size : slot.sizes) writer.number(size);
  }
}

at::Tensor pack_on(c10::Device device, const Values& values, const Layout& layout) {
  const at::AutoGradMode no_grad(false);
  const auto total = static_cast<std::int64_t>(layout.payload_bytes());
  for (const at::Tensor& value : values) {
    if (!value.defined()) continue;
    check_dense(value);
    const bool is_all = total > 0 && value.device() == device && value.is_contiguous() && !value.is_conj() &&
                        !value.is_neg() && static_cast<std::int64_t>(value.nbytes()) == total;
    if (is_all) return value.detach().view({-1}).view(at::kByte);
  }
  const at::Tensor all = at::empty({total}, at::TensorOptions(device).dtype(at::kByte));
  std::int64_t offset = 0;
  for (std::size_t at = 0; at < values.size(); ++at) {
    const auto bytes = static_cast<std::int64_t>(bytes_of(layout.slots[at]));
    if (bytes > 0) {
      all.narrow(0, offset, bytes).view(values[at].scalar_type()).copy_(values[at].detach().reshape({-1}));
    }
    offset += static_cast<std::int64_t>(aligned(static_cast<std::size_t>(bytes)));
  }
  return all;
}

void pack(const Values& values, const Layout& layout, bool with_layout, std::byte* to) {
  if (with_layout) {
    write_layout(layout, to);
    to += aligned(layout_bytes(layout));
  }
  for (std::size_t at = 0; at < values.size(); ++at) {
    const at::Tensor& value = values[at];
    if (!value.defined()) continue;
    check_dense(value);
    const std::size_t bytes = bytes_of(layout.slots[at]);
    if (bytes > 0) std::memcpy(to, value.detach().cpu().contiguous().const_data_ptr(), bytes);
    to += aligned(bytes);
  }
}

Layout read_layout(const std::byte* from, std::size_t size) {
  Reader reader(from, size);
  Layout layout;
  const auto slots = static_cast<std::size_t>(reader.number(0, kMostSlots));
  for (std::size_t at = 0; at < slots; ++at) {
    Layout::Slot slot;
    slot.present = reader.number(0, 1) == 1;
    slot.dtype = static_cast<at::ScalarType>(
        reader.number(0, static_cast<std::int64_t>(at::ScalarType::NumOptions) - 1));
    slot.requires_grad = reader.number(0, 1) == 1;
    slot.device = static_cast<at::DeviceType>(
        reader.number(0, static_cast<std::int64_t>(at::COMPILE_TIME_MAX_DEVICE_TYPES) - 1));
    const auto dimensions = static_cast<std::size_t>(reader.number(0, kMostDimensions));
    std::int64_t left = kMostElements;
    for (std::size_t dimension = 0; dimension < dimensions; ++dimension) {
      slot.sizes.push_back(reader.number(0, left));
      if (slot.sizes.back() > 0) left /= slot.sizes.back();
    }
    layout.slots.push_back(std::move(slot));
  }
  return layout;
}

Values unpack(const at::Tensor& buffer, std::size_t offset, const Layout& layout) {
  if (offset + layout.payload_bytes() > buffer.nbytes()) {
    throw Error("a message of " + std::to_string(buffer.nbytes()) + " bytes is too short for its values");
  }
  Values values(layout.slots.size());
  auto* from = static_cast<std::byte*>(buffer.data_ptr()) + offset;
  for (std::size_t at = 0; at < layout.slots.size(); ++at) {
    const Layout::Slot& slot = layout.slots[at];
    if (!slot.present) continue;
    // Not as views, of which a change to one would be a change to all.
    const auto options = at::TensorOptions(buffer.device()).dtype(slot.dtype);
    values[at] = at::from_blob(from, slot.sizes, [buffer](void*) {}, options, buffer.device());
    if (slot.device != buffer.device().type()) values[at] = values[at].to(slot.device);
    if (slot.requires_grad) values[at].set_requires_grad(true);
    from += aligned(bytes_of(slot));
  }
  return values;
}

}  // namespace pipewright
