#include "runtime/transport/host_channel.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "runtime/transport/message_buffer.h"
#include "runtime/world/network.h"

namespace pipewright {
namespace {

/// Receives of small messages that a channel has under way before the plan posts them, so that messages
/// find a receive waiting. Without them, on as many ranks as cores, Gloo's own thread was seen to wake up
/// thousands of times in a row with nothing to do, as if it waited for a lock of the posting thread.
constexpr std::size_t kAhead = 4;
constexpr std::size_t kSmall = 256 << 10;

/// What a receiver makes room for after a message like this.
std::size_t room_for(const Layout& layout) {
  return std::max(kFirstRoom, Prefix::kSize + layout.payload_bytes());
}

}  // namespace

std::size_t ReceiveWindow::post(std::size_t room) {
  ++posted_;
  const std::size_t wanted = posted_ + (room <= kSmall ? kAhead : 0);
  const std::size_t more = wanted > started_ ? wanted - started_ : 0;
  started_ += more;
  return more;
}

void HostSender::begin_step() {
  room_before_ = rooms_.empty() ? room_before_ : rooms_.back();
  rooms_.clear();
}

void HostSender::send(Microbatch microbatch, Values values, std::size_t taken_before) {
  if (connection_.aborted) throw Stopped();
  Layout layout = Layout::of(values);
  const bool changed = layout != layout_;
  Prefix prefix;
  prefix.microbatch = microbatch;
  prefix.layout_bytes = changed ? static_cast<std::uint32_t>(layout_bytes(layout)) : 0;
  prefix.payload_bytes = layout.payload_bytes();
  prefix.overflow = Prefix::kSize + prefix.rest() > next_room(taken_before) ? 1 : 0;

  const at::Tensor first = make_message_buffer(Prefix::kSize + (prefix.overflow ? 0 : prefix.rest()));
  std::memcpy(first.data_ptr(), &prefix, sizeof prefix);
  at::Tensor second;
  if (prefix.overflow) second = make_message_buffer(prefix.rest());
  pack(values, layout, changed,
       prefix.overflow ? static_cast<std::byte*>(second.data_ptr())
                       : static_cast<std::byte*>(first.data_ptr()) + Prefix::kSize);
  connection_.outbox.add(connection_.start_send(id_, first, process_, tag_), id_, microbatch);
  if (second.defined()) {
    connection_.outbox.add(connection_.start_send(id_, second, process_, tag_ + 1), id_, microbatch);
  }
  rooms_.push_back(room_for(layout));
  layout_ = std::move(layout);
}

Message HostSender::take(Microbatch /*microbatch*/) { throw Error("this end of a channel only sends"); }

std::size_t HostSender::next_room(std::size_t taken_before) {
  const std::size_t posted = taken_before == 0 ? room_before_ : rooms_.at(taken_before - 1);
  under_way_.insert(under_way_.end(), window_.post(posted), posted);
  const std::size_t room = under_way_.front();
  under_way_.pop_front();
  return room;
}

void HostReceiver::send(Microbatch /*microbatch*/, Values /*values*/, std::size_t /*taken_before*/) {
  throw Error("this end of a channel only receives");
}

void HostReceiver::post(Microbatch microbatch) {
  posted_.push_back(microbatch);
  for (std::size_t more = window_.post(room_); more > 0; --more) start_next();
}

Message HostReceiver::take(Microbatch microbatch) {
  at::Tensor buffer = wait(microbatch);
  if (buffer.nbytes() < Prefix::kSize) throw Error("the " + to_text(id_) + " came without a prefix");
  Prefix prefix;
  std::memcpy(&prefix, buffer.data_ptr(), sizeof prefix);
  if (prefix.magic != Prefix::kMagic) throw Error("the " + to_text(id_) + " are none of this program");
  if (prefix.microbatch != microbatch) {
    throw Error("the " + to_text(id_) + " came for microbatch " + std::to_string(prefix.microbatch) +
                ", expected microbatch " + std::to_string(microbatch) +
                ": the plan sends and receives in different orders");
  }
  std::size_t offset = Prefix::kSize;
  if (prefix.overflow) {
    offset = 0;
    buffer = make_message_buffer(prefix.rest());
    {
      const std::lock_guard lock(mutex_);
      under_way_.push_front({buffer, connection_.start_receive(id_, buffer, process_, tag_ + 1)});
      if (connection_.aborted) under_way_.front().work->abort();
    }
    wait(microbatch);
  }
  if (prefix.layout_bytes > 0) {
    if (offset + prefix.rest() > buffer.nbytes()) throw Error("the " + to_text(id_) + " are cut short");
    layout_ = read_layout(static_cast<const std::byte*>(buffer.data_ptr()) + offset, prefix.layout_bytes);
  }
  if (layout_.payload_bytes() != prefix.payload_bytes) {
    throw Error("the " + to_text(id_) + " have " + std::to_string(prefix.payload_bytes) +
                " bytes, expected " + std::to_string(layout_.payload_bytes()));
  }
  offset += prefix.body_offset() - Prefix::kSize;
  room_ = room_for(layout_);
  posted_.pop_front();
  return {.values = unpack(buffer, offset, layout_), .arrived = Clock::now()};
}

void HostReceiver::abort() {
  const std::lock_guard lock(mutex_);
  for (const Receive& each : under_way_) each.work->abort();
}

void HostReceiver::take_rest() {
  while (!posted_.empty()) take(posted_.front());
}

void HostReceiver::start_next() {
  at::Tensor buffer = make_message_buffer(room_);
  WorkPtr work = connection_.start_receive(id_, buffer, process_, tag_);
  const std::lock_guard lock(mutex_);
  under_way_.push_back({std::move(buffer), std::move(work)});
  if (connection_.aborted) under_way_.back().work->abort();
}

at::Tensor HostReceiver::wait(Microbatch microbatch) {
  WorkPtr work;
  {
    const std::lock_guard lock(mutex_);
    work = under_way_.front().work;
  }
  const auto start = Clock::now();
  try {
    if (!work->wait(timeout_) || connection_.aborted) throw Stopped();
  } catch (const std::exception& error) {
    if (connection_.aborted) throw Stopped();
    if (Clock::now() - start >= timeout_) throw not_sent_in_time(timeout_, id_, process_, microbatch);
    throw ConnectionError("no " + to_text(id_) + " for microbatch " + std::to_string(microbatch) +
                          "; the connection to rank " + std::to_string(id_.from_rank) + " in process " +
                          std::to_string(process_) + " is lost: " + connection_reason(error.what()));
  }
  const std::lock_guard lock(mutex_);
  at::Tensor buffer = std::move(under_way_.front().buffer);
  under_way_.pop_front();
  return buffer;
}

}  // namespace pipewright
