#include "runtime/transport/direct_channel.h"

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>

#include <utility>
#include <vector>

namespace pipewright {
namespace {

/// How often a thread looks whether a device has got somewhere.
constexpr std::chrono::microseconds kPoll{20};

std::optional<c10::Stream> own_stream(c10::Device device) {
  return device.is_cpu() ? std::nullopt : std::optional(new_stream(device));
}

/// What says that a message can be sent.
at::Tensor make_word() { return at::empty({1}, at::kByte); }

}  // namespace

DirectSender::DirectSender(DirectLink link, std::shared_ptr<HostSender> headers)
    : link_(std::move(link)), headers_(std::move(headers)), thread_([this] { serve(); }) {}

DirectSender::~DirectSender() { thread_.join(); }

void DirectSender::begin_step() { sent_ = 0; }

void DirectSender::send(Microbatch microbatch, Values values, std::size_t /*taken_before*/) {
  if (link_.connection.aborted) throw Stopped();
  Outgoing message{.microbatch = microbatch,
                   .number = sent_++,
                   .layout = Layout::of(values),
                   .payload = {},
                   .computed = {}};
  message.payload = pack_on(link_.id.from_device, values, message.layout);
  if (!link_.id.from_device.is_cpu()) message.computed = mark(link_.id.from_device, Timed::No);
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(message));
  }
  changed_.notify_all();
}

Message DirectSender::take(Microbatch /*microbatch*/) { throw Error("this end of a channel only sends"); }

std::optional<Undelivered> DirectSender::wait_all() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return link_.connection.aborted || queue_.empty(); });
  if (link_.connection.aborted) throw Stopped();
  return std::exchange(lost_, std::nullopt);
}

void DirectSender::abort() {
  const std::lock_guard lock(mutex_);
  if (waits_for_) waits_for_->abort();
  changed_.notify_all();
}

void DirectSender::serve() {
  const c10::OptionalStreamGuard stream(own_stream(link_.id.from_device));
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return link_.connection.aborted || !queue_.empty(); });
    if (link_.connection.aborted) return;
    Outgoing message = std::move(queue_.front());  // its place stays until it is delivered
    const Microbatch microbatch = message.microbatch;
    lock.unlock();
    std::exception_ptr error;
    try {
      error = deliver(message);
    } catch (const Stopped&) {
      return;
    } catch (const std::exception&) {
      error = std::current_exception();
    }
    message = {};  // not under the lock: it may have to wait for the device
    lock.lock();
    if (error && !lost_) lost_ = Undelivered{link_.id, microbatch, error};
    queue_.pop_front();
    changed_.notify_all();
  }
}

std::exception_ptr DirectSender::deliver(const Outgoing& message) {
  const at::Tensor word = make_word();
  if (auto error =
          wait(link_.connection.start_receive(link_.id, word, link_.process, link_.tag), message.microbatch))
    return error;
  if (!reached(message.computed)) {
    return std::make_exception_ptr(TimeoutError(
        "the " + to_text(link_.id) + " for microbatch " + std::to_string(message.microbatch) +
        " were not computed within " + std::to_string(link_.connection.timeout.count()) + " ms"));
  }
  WorkPtr work;
  if (message.payload.numel() > 0) {
    std::vector<at::Tensor> tensors = {message.payload};
    try {
      work = link_.carrier->send(tensors, 1, 0);
    } catch (const std::exception& why) {
      link_.connection.fail(link_.id, link_.process, why.what());
    }
  }
  const at::Tensor header = at::empty({static_cast<std::int64_t>(layout_bytes(message.layout))}, at::kByte);
  write_layout(message.layout, static_cast<std::byte*>(header.data_ptr()));
  headers_->send(message.microbatch, {header}, message.number);
  if (!work) return nullptr;
  if (link_.id.from_device.is_cpu()) return wait(work, message.microbatch);
  work->wait();  // what this thread's stream does next does
  if (reached(mark(link_.id.from_device, Timed::No))) return nullptr;
  return not_taken_in_time(link_.connection.timeout, link_.id, message.microbatch);
}

std::exception_ptr DirectSender::wait(const WorkPtr& work, Microbatch microbatch) {
  {
    const std::lock_guard lock(mutex_);
    waits_for_ = work;
    if (link_.connection.aborted) throw Stopped();
  }
  const std::exception_ptr error = wait_for_receiver(*work, link_.connection.timeout, link_.id, microbatch);
  const std::lock_guard lock(mutex_);
  waits_for_.reset();
  if (link_.connection.aborted) throw Stopped();
  return error;
}

bool DirectSender::reached(const Mark& point) const {
  const auto end = Clock::now() + link_.connection.timeout;
  while (point && !point->query()) {
    if (link_.connection.aborted) throw Stopped();
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(kPoll);
  }
  return true;
}

DirectReceiver::DirectReceiver(DirectLink link, std::shared_ptr<HostReceiver> headers)
    : link_(std::move(link)),
      headers_(std::move(headers)),
      stream_(own_stream(link_.id.to_device)),
      thread_([this] { serve(); }) {}

DirectReceiver::~DirectReceiver() { thread_.join(); }

void DirectReceiver::begin_step(bool trace) { traced_ = trace; }

void DirectReceiver::send(Microbatch /*microbatch*/, Values /*values*/, std::size_t /*taken_before*/) {
  throw Error("this end of a channel only receives");
}

void DirectReceiver::post(Microbatch microbatch) {
  at::Tensor room = make_room(room_);
  WorkPtr word = link_.connection.start_send(link_.id, make_word(), link_.process, link_.tag);
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back({microbatch, std::move(room), std::move(word)});
  }
  changed_.notify_all();
}

at::Tensor DirectReceiver::make_room(std::size_t bytes) const {
  const c10::OptionalStreamGuard stream(stream_);
  return at::empty({static_cast<std::int64_t>(bytes)},
                   at::TensorOptions(link_.id.to_device).dtype(at::kByte));
}

Message DirectReceiver::take(Microbatch microbatch) {
  std::unique_lock lock(mutex_);
  const bool in_time = changed_.wait_for(lock, link_.connection.timeout, [this] {
    return link_.connection.aborted || error_ || !incoming_.empty();
  });
  if (link_.connection.aborted) throw Stopped();
  if (!in_time) throw not_sent_in_time(link_.connection.timeout, link_.id, link_.process, microbatch);
  if (incoming_.empty()) std::rethrow_exception(error_);
  const Incoming message = std::move(incoming_.front());
  incoming_.pop_front();
  posted_.pop_front();
  lock.unlock();
  if (message.work) {
    try {
      if (!message.work->wait(link_.connection.timeout)) throw Stopped();
    } catch (const std::exception& why) {
      link_.connection.fail(link_.id, link_.process, why.what());
    }
  }
  if (message.given) {
    const c10::Stream current = current_stream(link_.id.to_device);
    message.given->block(current);
    keep_for({message.payload}, current);
  }
  return {.values = unpack(message.payload, 0, message.layout),
          .given = message.given,
          .arrived = message.arrived};
}

void DirectReceiver::abort() {
  headers_->abort();
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void DirectReceiver::take_rest() {
  while (true) {
    Microbatch next = 0;
    {
      const std::lock_guard lock(mutex_);
      if (posted_.empty()) return;
      next = posted_.front().microbatch;
    }
    take(next);
  }
}

void DirectReceiver::serve() {
  const c10::OptionalStreamGuard stream(stream_);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return link_.connection.aborted || incoming_.size() < posted_.size(); });
    if (link_.connection.aborted) return;
    Posted& next = posted_[incoming_.size()];
    const Microbatch microbatch = next.microbatch;
    const at::Tensor room = std::move(next.room);
    lock.unlock();
    std::optional<Incoming> message;
    std::exception_ptr error;
    try {
      message = receive(microbatch, room);
    } catch (const Stopped&) {
      return;
    } catch (const std::exception&) {
      error = std::current_exception();
    }
    lock.lock();
    if (message) incoming_.push_back(std::move(*message));
    error_ = error;
    changed_.notify_all();
    if (error) return;
  }
}

DirectReceiver::Incoming DirectReceiver::receive(Microbatch microbatch, const at::Tensor& room) {
  headers_->post(microbatch);
  const Values header = headers_->take(microbatch).values;
  Incoming message{.layout = read_layout(static_cast<const std::byte*>(header.at(0).const_data_ptr()),
                                         header.at(0).nbytes()),
                   .payload = room,
                   .work = {},
                   .given = {},
                   .arrived = {}};
  if (message.layout.payload_bytes() != room.nbytes()) {
    room_ = message.layout.payload_bytes();
    message.payload = make_room(room_);
  }
  if (message.payload.numel() > 0) {
    std::vector<at::Tensor> tensors = {message.payload};
    try {
      message.work = link_.carrier->recv(tensors, 0, 0);
    } catch (const std::exception& why) {
      link_.connection.fail(link_.id, link_.process, why.what());
    }
  }
  if (!link_.id.to_device.is_cpu()) {
    if (message.work) std::exchange(message.work, {})->wait();  // what this thread's stream does next does
    message.given = mark(link_.id.to_device, traced_ ? Timed::Yes : Timed::No);
  }
  message.arrived = Clock::now();
  return message;
}

}  // namespace pipewright
