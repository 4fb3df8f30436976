#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <mutex>
#include <vector>

#include "runtime/transport/connection.h"
#include "runtime/transport/message_format.h"

namespace pipewright {

/// How many receives a channel has started. Both ends follow it, so that the sender knows the room of each.
class ReceiveWindow {
 public:
  /// The plan posts another receive: how many of size `room` to start.
  std::size_t post(std::size_t room);

 private:
  std::size_t posted_ = 0;
  std::size_t started_ = 0;
};

/// What a receiver can take before anything has arrived.
inline constexpr std::size_t kFirstRoom = 64 << 10;

/// The end that sends of a channel through host memory. Knows how much room the receiver has for each
/// message, because that follows from the messages that he has taken before he starts to receive it.
class HostSender final : public Channel {
 public:
  /// Uses `tag` and the next.
  HostSender(const ChannelId& id, Connection& connection, int process, int tag)
      : id_(id), connection_(connection), process_(process), tag_(tag) {}

  void begin_step();
  void send(Microbatch microbatch, Values values, std::size_t taken_before) override;
  void post(Microbatch /*microbatch*/) override {}
  Message take(Microbatch microbatch) override;

 private:
  /// That of the oldest receive under way, when the receiver has posted this message's.
  std::size_t next_room(std::size_t taken_before);

  const ChannelId id_;
  Connection& connection_;
  const int process_;
  const int tag_;
  Layout layout_;
  std::size_t room_before_ = kFirstRoom;  // after the steps before
  std::vector<std::size_t> rooms_;        // after each message of this step
  ReceiveWindow window_;
  std::deque<std::size_t> under_way_;  // rooms of the receives
};

/// The end that receives.
class HostReceiver final : public Channel {
 public:
  HostReceiver(const ChannelId& id, Connection& connection, int process, int tag,
               std::chrono::milliseconds timeout)
      : id_(id), connection_(connection), process_(process), tag_(tag), timeout_(timeout) {}

  void send(Microbatch microbatch, Values values, std::size_t taken_before) override;
  void post(Microbatch microbatch) override;
  Message take(Microbatch microbatch) override;

  /// Ends the wait for what is under way. From any thread.
  void abort();

  /// Receives what was posted and not taken, and drops it.
  void take_rest();

 private:
  struct Receive {
    at::Tensor buffer;
    WorkPtr work;
  };

  void start_next();
  /// The buffer of the first that is under way, filled.
  at::Tensor wait(Microbatch microbatch);

  const ChannelId id_;
  Connection& connection_;
  const int process_;
  const int tag_;
  const std::chrono::milliseconds timeout_;
  Layout layout_;
  std::size_t room_ = kFirstRoom;
  ReceiveWindow window_;
  std::deque<Microbatch> posted_;  // and not taken
  std::mutex mutex_;
  std::deque<Receive> under_way_;
};

}  // namespace pipewright
