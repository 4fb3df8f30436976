#include "runtime/transport/direct_channel.h"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include <utility>
#include <vector>

namespace pipewright {
namespace {

/// How often a thread looks whether a device has got somewhere.
constexpr std::chrono::microseconds kPoll{20};

/// While it lives, the calling thread gives its work to a stream of its own.
class OwnStream {
 public:
  explicit OwnStream(c10::Device device) {
    if (device.is_cpu()) return;
    device_.reset_device(device);
    stream_.reset_stream(new_stream(device));
  }

 private:
  c10::OptionalDeviceGuard device_;
  c10::OptionalStreamGuard stream_;
};

/// What says that a message can be sent.
at::Tensor make_word() { return at::empty({1}, at::kByte); }

}  // namespace

DirectSender::DirectSender(const ChannelId& id, Connection& connection, Carrier carrier,
                           std::shared_ptr<HostSender> headers, int process, int tag)
    : id_(id),
      connection_(connection),
      carrier_(std::move(carrier)),
      headers_(std::move(headers)),
      process_(process),
      tag_(tag),
      thread_([this] { serve(); }) {}

DirectSender::~DirectSender() { thread_.join(); }

void DirectSender::begin_step() { sent_ = 0; }

void DirectSender::send(Microbatch microbatch, Values values, std::size_t /*taken_before*/) {
  if (connection_.aborted) throw Stopped();
  Outgoing message{.microbatch = microbatch,
                   .number = sent_++,
                   .layout = Layout::of(values),
                   .payload = {},
                   .computed = {}};
  message.payload = pack_on(id_.from_device, values, message.layout);
  if (!id_.from_device.is_cpu()) message.computed = mark(id_.from_device, Timed::No);
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(message));
  }
  changed_.notify_all();
}

Message DirectSender::take(Microbatch /*microbatch*/) { throw Error("this end of a channel only sends"); }

std::optional<Undelivered> DirectSender::wait_all() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return connection_.aborted || queue_.empty(); });
  if (connection_.aborted) throw Stopped();
  return std::exchange(lost_, std::nullopt);
}

void DirectSender::abort() {
  const std::lock_guard lock(mutex_);
  if (waits_for_) waits_for_->abort();
  changed_.notify_all();
}

void DirectSender::serve() {
  const OwnStream stream(id_.from_device);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return connection_.aborted || !queue_.empty(); });
    if (connection_.aborted) return;
    const Outgoing message = queue_.front();
    lock.unlock();
    std::exception_ptr error;
    try {
      error = deliver(message);
    } catch (const Stopped&) {
      return;
    } catch (const std::exception&) {
      error = std::current_exception();
    }
    lock.lock();
    if (error && !lost_) lost_ = Undelivered{id_, message.microbatch, error};
    queue_.pop_front();
    changed_.notify_all();
  }
}

std::exception_ptr DirectSender::deliver(const Outgoing& message) {
  const at::Tensor word = make_word();
  if (auto error = wait(connection_.start_receive(id_, word, process_, tag_), message.microbatch))
    return error;
  if (!reached(message.computed)) {
    return std::make_exception_ptr(
        TimeoutError("the " + to_text(id_) + " for microbatch " + std::to_string(message.microbatch) +
                     " were not computed within " + std::to_string(connection_.timeout.count()) + " ms"));
  }
  WorkPtr work;
  if (message.payload.numel() > 0) {
    std::vector<at::Tensor> tensors = {message.payload};
    try {
      work = carrier_->send(tensors, 1, 0);
    } catch (const std::exception& why) {
      connection_.fail(id_, process_, why.what());
    }
  }
  const at::Tensor header = at::empty({static_cast<std::int64_t>(layout_bytes(message.layout))}, at::kByte);
  write_layout(message.layout, static_cast<std::byte*>(header.data_ptr()));
  headers_->send(message.microbatch, {header}, message.number);
  if (!work) return nullptr;
  if (id_.from_device.is_cpu()) return wait(work, message.microbatch);
  work->wait();  // what this thread's stream does next does
  if (reached(mark(id_.from_device, Timed::No))) return nullptr;
  return not_taken_in_time(connection_.timeout, id_, message.microbatch);
}

std::exception_ptr DirectSender::wait(const WorkPtr& work, Microbatch microbatch) {
  {
    const std::lock_guard lock(mutex_);
    waits_for_ = work;
    if (connection_.aborted) throw Stopped();
  }
  const std::exception_ptr error = wait_for_receiver(*work, connection_.timeout, id_, microbatch);
  const std::lock_guard lock(mutex_);
  waits_for_.reset();
  if (connection_.aborted) throw Stopped();
  return error;
}

bool DirectSender::reached(const Mark& point) const {
  const auto end = Clock::now() + connection_.timeout;
  while (point && !point->query()) {
    if (connection_.aborted) throw Stopped();
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(kPoll);
  }
  return true;
}

DirectReceiver::DirectReceiver(const ChannelId& id, Connection& connection, Carrier carrier,
                               std::shared_ptr<HostReceiver> headers, int process, int tag)
    : id_(id),
      connection_(connection),
      carrier_(std::move(carrier)),
      headers_(std::move(headers)),
      process_(process),
      tag_(tag),
      thread_([this] { serve(); }) {}

DirectReceiver::~DirectReceiver() { thread_.join(); }

void DirectReceiver::begin_step(bool trace) { traced_ = trace; }

void DirectReceiver::send(Microbatch /*microbatch*/, Values /*values*/, std::size_t /*taken_before*/) {
  throw Error("this end of a channel only receives");
}

void DirectReceiver::post(Microbatch microbatch) {
  WorkPtr word = connection_.start_send(id_, make_word(), process_, tag_);
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back({microbatch, std::move(word)});
  }
  changed_.notify_all();
}

Message DirectReceiver::take(Microbatch microbatch) {
  std::unique_lock lock(mutex_);
  const bool in_time = changed_.wait_for(
      lock, connection_.timeout, [this] { return connection_.aborted || error_ || !incoming_.empty(); });
  if (connection_.aborted) throw Stopped();
  if (!in_time) throw not_sent_in_time(connection_.timeout, id_, process_, microbatch);
  if (incoming_.empty()) std::rethrow_exception(error_);
  const Incoming message = std::move(incoming_.front());
  incoming_.pop_front();
  posted_.pop_front();
  lock.unlock();
  if (message.work) {
    try {
      if (!message.work->wait(connection_.timeout)) throw Stopped();
    } catch (const std::exception& why) {
      connection_.fail(id_, process_, why.what());
    }
  }
  if (message.given) {
    const c10::Stream current = current_stream(id_.to_device);
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
  const OwnStream stream(id_.to_device);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return connection_.aborted || incoming_.size() < posted_.size(); });
    if (connection_.aborted) return;
    const Microbatch microbatch = posted_[incoming_.size()].microbatch;
    lock.unlock();
    std::optional<Incoming> message;
    std::exception_ptr error;
    try {
      message = receive(microbatch);
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

DirectReceiver::Incoming DirectReceiver::receive(Microbatch microbatch) {
  headers_->post(microbatch);
  const Values header = headers_->take(microbatch).values;
  Incoming message{.layout = read_layout(static_cast<const std::byte*>(header.at(0).const_data_ptr()),
                                         header.at(0).nbytes()),
                   .payload = {},
                   .work = {},
                   .given = {},
                   .arrived = {}};
  message.payload = at::empty({static_cast<std::int64_t>(message.layout.payload_bytes())},
                              at::TensorOptions(id_.to_device).dtype(at::kByte));
  if (message.payload.numel() > 0) {
    std::vector<at::Tensor> tensors = {message.payload};
    try {
      message.work = carrier_->recv(tensors, 0, 0);
    } catch (const std::exception& why) {
      connection_.fail(id_, process_, why.what());
    }
  }
  if (!id_.to_device.is_cpu()) {
    if (message.work) std::exchange(message.work, {})->wait();  // what this thread's stream does next does
    message.given = mark(id_.to_device, traced_ ? Timed::Yes : Timed::No);
  }
  message.arrived = Clock::now();
  return message;
}

}  // namespace pipewright
