#include "runtime/transport/inproc.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "pipewright/runtime/errors.h"
#include "runtime/device/device_link.h"

namespace pipewright {
namespace {

/// What all channels of a transport look at.
struct Shared {
  std::chrono::milliseconds timeout;
  std::atomic<bool> aborted = false;
  std::atomic<bool> traced = false;
};

class Mailbox final : public Channel {
 public:
  Mailbox(const ChannelId& id, std::shared_ptr<Shared> shared)
      : id_(id), link_(id.from_device, id.to_device), shared_(std::move(shared)) {}

  void send(Microbatch microbatch, Values values, std::size_t /*taken_before*/) override {
    Message message{std::move(values)};
    message.given = link_.give(message.values, shared_->traced ? Timed::Yes : Timed::No);
    if (shared_->traced) message.arrived = Clock::now();
    {
      const std::lock_guard lock(mutex_);
      messages_.emplace_back(microbatch, std::move(message));
    }
    arrived_.notify_one();
  }

  void post(Microbatch /*microbatch*/) override {}

  Message take(Microbatch microbatch) override {
    std::unique_lock lock(mutex_);
    const bool in_time =
        arrived_.wait_for(lock, shared_->timeout, [this] { return !messages_.empty() || shared_->aborted; });
    if (shared_->aborted) throw Stopped();
    if (!in_time) {
      throw TimeoutError("no " + to_text(id_) + " for microbatch " + std::to_string(microbatch) + " within " +
                         std::to_string(shared_->timeout.count()) + " ms; rank " +
                         std::to_string(id_.from_rank) + " has not sent them");
    }
    auto [sent, message] = std::move(messages_.front());
    messages_.pop_front();
    lock.unlock();
    if (sent != microbatch) {
      throw Error("the " + to_text(id_) + " came for microbatch " + std::to_string(sent) +
                  ", expected microbatch " + std::to_string(microbatch) +
                  ": the plan sends and receives in different orders");
    }
    link_.take(message.values, message.given);
    return std::move(message);
  }

  void wake() {
    // The lock keeps the flag from changing between a waiter's look at it and its sleep.
    {
      const std::lock_guard lock(mutex_);
    }
    arrived_.notify_all();
  }

  void clear() {
    const std::lock_guard lock(mutex_);
    messages_.clear();
  }

 private:
  const ChannelId id_;
  DeviceLink link_;
  const std::shared_ptr<Shared> shared_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::pair<Microbatch, Message>> messages_;
};

class InprocTransport final : public Transport {
 public:
  explicit InprocTransport(std::chrono::milliseconds timeout) : shared_(std::make_shared<Shared>()) {
    shared_->timeout = timeout;
  }

  std::shared_ptr<Channel> connect(const ChannelId& id) override {
    std::shared_ptr<Mailbox>& mailbox = mailboxes_[{id.replica, id.from, id.to}];
    if (!mailbox) mailbox = std::make_shared<Mailbox>(id, shared_);
    return mailbox;
  }

  void abort() override {
    shared_->aborted = true;
    for (const auto& [edge, mailbox] : mailboxes_) mailbox->wake();
  }

  void reset() override {
    for (const auto& [edge, mailbox] : mailboxes_) mailbox->clear();
    shared_->aborted = false;
  }

  void begin_step(bool trace) override { shared_->traced = trace; }

  std::optional<Undelivered> end_step() override { return std::nullopt; }

 private:
  std::shared_ptr<Shared> shared_;
  std::map<std::tuple<int, Stage, Stage>, std::shared_ptr<Mailbox>> mailboxes_;
};

}  // namespace

std::string to_text(const ChannelId& id) {
  return std::string(id.carries_gradients() ? "gradients" : "activations") + " of stage " +
         std::to_string(id.from) + " (rank " + std::to_string(id.from_rank) + ") to stage " +
         std::to_string(id.to) + " (rank " + std::to_string(id.to_rank) + ")";
}

std::unique_ptr<Transport> make_inproc_transport(std::chrono::milliseconds timeout) {
  return std::make_unique<InprocTransport>(timeout);
}

}  // namespace pipewright
