#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "pipewright/base/ids.h"
#include "pipewright/runtime/values.h"
#include "runtime/device/streams.h"
#include "runtime/flight/clock.h"

namespace pipewright {

/// A directed link from one stage to another on another rank of the same replica:
/// activations forwards, gradients backwards.
struct ChannelId {
  Stage from;
  Stage to;
  Rank from_rank;
  Rank to_rank;
  int replica;
  /// Where the ranks compute, if both are of this process.
  c10::Device from_device = c10::kCPU;
  c10::Device to_device = c10::kCPU;

  bool carries_gradients() const { return to < from; }
};
/// `activations of stage 1 (rank 1) to stage 2 (rank 0)`
std::string to_text(const ChannelId& id);

/// What a message brings: values that require gradients are marked so, detached, and
/// held by nobody else who would change them.
struct Message {
  Values values;
  /// Reached when the values are there; null where they are already.
  Mark given = {};
  /// When it was there to be taken; only filled in while a step is traced.
  Clock::time_point arrived = {};
};

/// One end of a channel, or both in one process. Messages arrive in the order in which they were sent.
/// One thread sends and one takes; `Transport::abort` may come from any.
class Channel {
 public:
  virtual ~Channel() = default;

  /// Hands the values over without waiting for the receiver. `taken_before`: how many messages of
  /// this step the receiver has taken from the channel when he posts this one.
  virtual void send(Microbatch microbatch, Values values, std::size_t taken_before) = 0;

  /// Says that this microbatch's message will be taken; transports that need to, start
  /// receiving. Messages are taken in the order in which they were posted.
  virtual void post(Microbatch microbatch) = 0;

  /// Waits for the message; what the calling thread computes on its current stream waits for its values.
  /// Throws TimeoutError after the time-out, Stopped after an abort.
  virtual Message take(Microbatch microbatch) = 0;
};

/// Thrown out of a wait that another rank's failure has ended; carries nothing, because the
/// failure itself is what gets reported.
struct Stopped {};

/// A message that its receiver did not take.
struct Undelivered {
  ChannelId channel;
  Microbatch microbatch;
  std::exception_ptr cause;
};

/// Makes the channels of one process and ends their waits.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual std::shared_ptr<Channel> connect(const ChannelId& id) = 0;

  /// `trace`: messages carry the time of their arrival. REQUIRES: nobody sends or takes.
  virtual void begin_step(bool trace) = 0;

  /// Waits until everything that was sent has reached its receiver; the first that did not.
  /// Throws Stopped after an abort.
  virtual std::optional<Undelivered> end_step() = 0;

  /// Makes every wait, now and later, throw Stopped, until `reset`.
  virtual void abort() = 0;

  /// Drops what is under way. REQUIRES: nobody sends or takes.
  virtual void reset() = 0;
};

}  // namespace pipewright
