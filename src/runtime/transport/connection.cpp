#include "runtime/transport/connection.h"

#include <utility>
#include <vector>

#include "runtime/world/network.h"

namespace pipewright {
namespace {

std::string not_taken(const ChannelId& channel, Microbatch microbatch) {
  return "rank " + std::to_string(channel.to_rank) + " did not take the " + to_text(channel) +
         " for microbatch " + std::to_string(microbatch);
}

}  // namespace

std::exception_ptr not_taken_in_time(std::chrono::milliseconds timeout, const ChannelId& channel,
                                     Microbatch microbatch) {
  return std::make_exception_ptr(
      TimeoutError(not_taken(channel, microbatch) + " within " + std::to_string(timeout.count()) + " ms"));
}

TimeoutError not_sent_in_time(std::chrono::milliseconds timeout, const ChannelId& channel, int process,
                              Microbatch microbatch) {
  return TimeoutError("no " + to_text(channel) + " for microbatch " + std::to_string(microbatch) +
                      " within " + std::to_string(timeout.count()) + " ms; rank " +
                      std::to_string(channel.from_rank) + " in process " + std::to_string(process) +
                      " has not sent them");
}

std::exception_ptr wait_for_receiver(c10d::Work& work, std::chrono::milliseconds timeout,
                                     const ChannelId& channel, Microbatch microbatch) {
  const auto start = Clock::now();
  try {
    if (!work.wait(timeout)) throw Stopped();
  } catch (const std::exception& why) {
    if (Clock::now() - start >= timeout) return not_taken_in_time(timeout, channel, microbatch);
    return std::make_exception_ptr(
        ConnectionError(not_taken(channel, microbatch) + ": " + connection_reason(why.what())));
  }
  return nullptr;
}

void Outbox::add(WorkPtr work, const ChannelId& channel, Microbatch microbatch) {
  {
    const std::lock_guard lock(mutex_);
    sent_.push_back({std::move(work), channel, microbatch});
  }
  changed_.notify_all();
}

std::optional<Undelivered> Outbox::wait_all() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return aborted_ || sent_.empty(); });
  if (aborted_) throw Stopped();
  return std::exchange(lost_, std::nullopt);
}

void Outbox::abort() {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  for (const Sent& each : sent_) each.work->abort();
  changed_.notify_all();
}

void Outbox::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return aborted_ || !sent_.empty(); });
    if (aborted_) return;
    const Sent first = sent_.front();
    lock.unlock();
    std::exception_ptr error;
    try {
      error = wait_for_receiver(*first.work, timeout_, first.channel, first.microbatch);
    } catch (const Stopped&) {
      return;
    }
    lock.lock();
    if (aborted_) return;
    if (error && !lost_) lost_ = Undelivered{first.channel, first.microbatch, error};
    sent_.pop_front();
    changed_.notify_all();
  }
}

WorkPtr Connection::start_send(const ChannelId& id, const at::Tensor& buffer, int process, int tag) {
  if (aborted) throw Stopped();
  std::vector<at::Tensor> tensors = {buffer};
  try {
    const std::lock_guard lock(world.messages_mutex());
    return world.messages().send(tensors, process, tag);
  } catch (const std::exception& error) {
    fail(id, process, error.what());
  }
}

WorkPtr Connection::start_receive(const ChannelId& id, const at::Tensor& buffer, int process, int tag) {
  if (aborted) throw Stopped();
  std::vector<at::Tensor> tensors = {buffer};
  try {
    const std::lock_guard lock(world.messages_mutex());
    return world.messages().recv(tensors, process, tag);
  } catch (const std::exception& error) {
    fail(id, process, error.what());
  }
}

void Connection::fail(const ChannelId& id, int process, const std::string& why) const {
  if (aborted) throw Stopped();
  throw ConnectionError("the connection to process " + std::to_string(process) + ", for the " + to_text(id) +
                        ", is lost: " + connection_reason(why));
}

}  // namespace pipewright
