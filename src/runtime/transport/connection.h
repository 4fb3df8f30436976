#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "pipewright/runtime/errors.h"
#include "runtime/transport/channel.h"
#include "runtime/world/world_impl.h"

namespace pipewright {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

/// Waits until a message's receiver has done what the work waits for. What went wrong, else null. Throws
/// Stopped where the work was aborted.
std::exception_ptr wait_for_receiver(c10d::Work& work, std::chrono::milliseconds timeout,
                                     const ChannelId& channel, Microbatch microbatch);

/// That he did not within the time-out.
std::exception_ptr not_taken_in_time(std::chrono::milliseconds timeout, const ChannelId& channel,
                                     Microbatch microbatch);

/// That nothing came within the time-out.
TimeoutError not_sent_in_time(std::chrono::milliseconds timeout, const ChannelId& channel, int process,
                              Microbatch microbatch);

/// Sends that are under way: keeps what they send until it has arrived.
class Outbox {
 public:
  explicit Outbox(std::chrono::milliseconds timeout) : timeout_(timeout), thread_([this] { serve(); }) {}
  ~Outbox() {
    abort();
    thread_.join();
  }
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  void add(WorkPtr work, const ChannelId& channel, Microbatch microbatch);

  /// Waits until all have arrived; the first that did not. Throws Stopped after an abort.
  std::optional<Undelivered> wait_all();

  /// Forgets them all, and what comes later.
  void abort();

 private:
  struct Sent {
    WorkPtr work;
    ChannelId channel;
    Microbatch microbatch;
  };

  void serve();

  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Sent> sent_;
  std::optional<Undelivered> lost_;
  bool aborted_ = false;
  std::thread thread_;
};

/// What the channels of a transport between processes share.
class Connection {
 public:
  World::Impl& world;
  std::chrono::milliseconds timeout;
  Outbox outbox;
  std::atomic<bool> aborted = false;

  Connection(World::Impl& the_world, std::chrono::milliseconds the_timeout)
      : world(the_world), timeout(the_timeout), outbox(the_timeout) {}

  // Between host memories. Throw Stopped after an abort, ConnectionError where the connection is lost.
  WorkPtr start_send(const ChannelId& id, const at::Tensor& buffer, int process, int tag);
  WorkPtr start_receive(const ChannelId& id, const at::Tensor& buffer, int process, int tag);

  /// What to throw, Stopped or ConnectionError, where something with that process has failed.
  [[noreturn]] void fail(const ChannelId& id, int process, const std::string& why) const;
};

}  // namespace pipewright
