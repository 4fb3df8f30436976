#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "runtime/transport/connection.h"
#include "runtime/transport/host_channel.h"
#include "runtime/world/process_groups.h"

namespace pipewright {

// Channels from the memory of one device to that of another. A carrier, NCCL, moves the values; what they
// look like goes through host memory.
//
// A carrier's kernels occupy their device until those of the other end run, and meanwhile some calls to a
// device do not return. So neither end starts before it knows that the other will at once: the receiver says
// that he has posted a message, then the sender starts when the values are computed, then the receiver, told
// of it, does. Threads of the channels do that, so that nobody's order of actions matters. Memory, for which
// a device may have to be waited for, is made before that: when a message is posted.

/// A process group of two, the sender first, that nobody else uses, which has carried something already.
using Carrier = ProcessGroup;

/// What both ends of a channel know of it.
struct DirectLink {
  ChannelId id;
  Connection& connection;
  Carrier carrier;
  int process;  // of the other end
  int tag;      // of the receiver's word
};

class DirectSender final : public Channel {
 public:
  /// `headers`: to the same receiver.
  DirectSender(DirectLink link, std::shared_ptr<HostSender> headers);
  ~DirectSender() override;
  DirectSender(const DirectSender&) = delete;
  DirectSender& operator=(const DirectSender&) = delete;

  void begin_step();
  void send(Microbatch microbatch, Values values, std::size_t taken_before) override;
  void post(Microbatch /*microbatch*/) override {}
  Message take(Microbatch microbatch) override;

  /// Waits until all have arrived; the first that did not. Throws Stopped after an abort.
  std::optional<Undelivered> wait_all();
  /// When the connection is aborted: ends what waits for it. From any thread.
  void abort();

 private:
  struct Outgoing {
    Microbatch microbatch;
    std::size_t number;  // in this step
    Layout layout;
    at::Tensor payload;
    Mark computed;  // null on the CPU
  };

  void serve();
  /// What went wrong, else null. Throws Stopped.
  std::exception_ptr deliver(const Outgoing& message);
  /// The same for what the host waits for.
  std::exception_ptr wait(const WorkPtr& work, Microbatch microbatch);
  /// Whether it was reached before the time-out.
  bool reached(const Mark& point) const;

  const DirectLink link_;
  const std::shared_ptr<HostSender> headers_;
  std::size_t sent_ = 0;  // in this step

  std::mutex mutex_;  // what follows
  std::condition_variable changed_;
  std::deque<Outgoing> queue_;
  WorkPtr waits_for_;
  std::optional<Undelivered> lost_;
  std::thread thread_;
};

class DirectReceiver final : public Channel {
 public:
  /// `headers`: from the same sender, with a time-out that never comes.
  DirectReceiver(DirectLink link, std::shared_ptr<HostReceiver> headers);
  ~DirectReceiver() override;
  DirectReceiver(const DirectReceiver&) = delete;
  DirectReceiver& operator=(const DirectReceiver&) = delete;

  void begin_step(bool trace);
  void send(Microbatch microbatch, Values values, std::size_t taken_before) override;
  void post(Microbatch microbatch) override;
  Message take(Microbatch microbatch) override;

  /// As that of the sender, and of `headers`.
  void abort();
  /// Receives what was posted and not taken, and drops it.
  void take_rest();

 private:
  struct Posted {
    Microbatch microbatch;
    at::Tensor room;  // for as much as the message before had
    WorkPtr word;     // to the sender, until his message is there
  };
  struct Incoming {
    Layout layout;
    at::Tensor payload;
    WorkPtr work;  // until it is done; null where the device knows
    Mark given;    // null on the CPU
    Clock::time_point arrived;
  };

  void serve();
  Incoming receive(Microbatch microbatch, const at::Tensor& room);
  at::Tensor make_room(std::size_t bytes) const;

  const DirectLink link_;
  const std::shared_ptr<HostReceiver> headers_;
  const std::optional<c10::Stream> stream_;
  std::atomic<bool> traced_ = false;
  std::atomic<std::size_t> room_ = 0;

  std::mutex mutex_;  // what follows
  std::condition_variable changed_;
  std::deque<Posted> posted_;      // and not taken
  std::deque<Incoming> incoming_;  // the first of them
  std::exception_ptr error_;       // after which nothing more comes
  std::thread thread_;
};

}  // namespace pipewright
