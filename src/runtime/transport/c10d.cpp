#include "runtime/transport/c10d.h"

#include <ATen/ops/empty.h>
#include <sys/mman.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "pipewright/runtime/errors.h"
#include "runtime/transport/inproc.h"
#include "runtime/transport/message_format.h"
#include "runtime/world/network.h"
#include "runtime/world/world_impl.h"

namespace pipewright {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

/// What a receiver can take before anything has arrived.
constexpr std::size_t kFirstRoom = 64 << 10;

/// Receives of small messages that a channel has under way before the plan posts them, so that messages
/// find a receive waiting. Without them, on as many ranks as cores, Gloo's own thread was seen to wake up
/// thousands of times in a row with nothing to do, as if it waited for a lock of the posting thread.
constexpr std::size_t kAhead = 4;
constexpr std::size_t kSmall = 256 << 10;
/// From here on the C library asks the system for every buffer.
constexpr std::size_t kLarge = 32 << 20;

/// How many receives a channel has started. Both ends follow it, so that the sender knows the room of each.
class ReceiveWindow {
 public:
  /// The plan posts another receive: how many of size `room` to start.
  std::size_t post(std::size_t room) {
    ++posted_;
    const std::size_t wanted = posted_ + (room <= kSmall ? kAhead : 0);
    const std::size_t more = wanted > started_ ? wanted - started_ : 0;
    started_ += more;
    return more;
  }

 private:
  std::size_t posted_ = 0;
  std::size_t started_ = 0;
};

at::Tensor make_buffer(std::size_t bytes) {
  at::Tensor buffer = at::empty({static_cast<std::int64_t>(bytes)}, at::kByte);
  if (bytes >= kLarge) {
    // In large pages, where the system has them: fresh memory, page by page, costs more than what is sent.
    constexpr std::size_t kPage = 2 << 20;
    void* begin = buffer.data_ptr();
    std::size_t length = bytes;
    if (std::align(kPage, kPage, begin, length)) madvise(begin, length / kPage * kPage, MADV_HUGEPAGE);
  }
  return buffer;
}

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

  void add(WorkPtr work, const ChannelId& channel, Microbatch microbatch) {
    {
      const std::lock_guard lock(mutex_);
      sent_.push_back({std::move(work), channel, microbatch});
    }
    changed_.notify_all();
  }

  /// Waits until all have arrived; the first that did not.
  std::optional<Undelivered> wait_all() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return aborted_ || sent_.empty(); });
    if (aborted_) throw Stopped();
    return std::exchange(lost_, std::nullopt);
  }

  /// Forgets them all, and what comes later.
  void abort() {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    for (const Sent& each : sent_) each.work->abort();
    changed_.notify_all();
  }

 private:
  struct Sent {
    WorkPtr work;
    ChannelId channel;
    Microbatch microbatch;
  };

  void serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return aborted_ || !sent_.empty(); });
      if (aborted_) return;
      const Sent first = sent_.front();
      lock.unlock();
      std::exception_ptr error;
      const auto start = Clock::now();
      try {
        first.work->wait(timeout_);
      } catch (const std::exception& why) {
        const std::string what = "rank " + std::to_string(first.channel.to_rank) + " did not take the " +
                                 to_text(first.channel) + " for microbatch " +
                                 std::to_string(first.microbatch);
        error = Clock::now() - start >= timeout_
                    ? std::make_exception_ptr(
                          TimeoutError(what + " within " + std::to_string(timeout_.count()) + " ms"))
                    : std::make_exception_ptr(ConnectionError(what + ": " + connection_reason(why.what())));
      }
      lock.lock();
      if (aborted_) return;
      if (error && !lost_) lost_ = Undelivered{first.channel, first.microbatch, error};
      sent_.pop_front();
      changed_.notify_all();
    }
  }

  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Sent> sent_;
  std::optional<Undelivered> lost_;
  bool aborted_ = false;
  std::thread thread_;
};

/// What the channels of a transport share.
class Connection {
 public:
  World::Impl& world;
  std::chrono::milliseconds timeout;
  Outbox outbox;
  std::atomic<bool> aborted = false;

  Connection(World::Impl& the_world, std::chrono::milliseconds the_timeout)
      : world(the_world), timeout(the_timeout), outbox(the_timeout) {}

  WorkPtr start_send(const ChannelId& id, const at::Tensor& buffer, int process, int tag) {
    return start(id, process, [&] {
      std::vector<at::Tensor> tensors = {buffer};
      return world.messages().send(tensors, process, tag);
    });
  }
  WorkPtr start_receive(const ChannelId& id, const at::Tensor& buffer, int process, int tag) {
    return start(id, process, [&] {
      std::vector<at::Tensor> tensors = {buffer};
      return world.messages().recv(tensors, process, tag);
    });
  }

 private:
  template <typename Begin>
  WorkPtr start(const ChannelId& id, int process, Begin begin) {
    if (aborted) throw Stopped();
    try {
      const std::lock_guard lock(world.messages_mutex());
      return begin();
    } catch (const std::exception& error) {
      if (aborted) throw Stopped();
      throw ConnectionError("the connection to process " + std::to_string(process) + ", for the " +
                            to_text(id) + ", is lost: " + connection_reason(error.what()));
    }
  }
};

/// The end that sends. Knows how much room the receiver has for each message, because
/// that follows from the messages that he has taken before he starts to receive it.
class Sender final : public Channel {
 public:
  Sender(const ChannelId& id, Connection& connection, int process, int tag)
      : id_(id), connection_(connection), process_(process), tag_(tag) {}

  void begin_step() {
    room_before_ = rooms_.empty() ? room_before_ : rooms_.back();
    rooms_.clear();
  }

  void send(Microbatch microbatch, Values values, std::size_t taken_before) override {
    if (connection_.aborted) throw Stopped();
    Layout layout = Layout::of(values);
    const bool changed = layout != layout_;
    Prefix prefix;
    prefix.microbatch = microbatch;
    prefix.layout_bytes = changed ? static_cast<std::uint32_t>(layout_bytes(layout)) : 0;
    prefix.payload_bytes = layout.payload_bytes();
    prefix.overflow = Prefix::kSize + prefix.rest() > next_room(taken_before) ? 1 : 0;

    const at::Tensor first = make_buffer(Prefix::kSize + (prefix.overflow ? 0 : prefix.rest()));
    std::memcpy(first.data_ptr(), &prefix, sizeof prefix);
    at::Tensor second;
    if (prefix.overflow) second = make_buffer(prefix.rest());
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

  void post(Microbatch /*microbatch*/) override {}
  Message take(Microbatch /*microbatch*/) override { throw Error("this end of a channel only sends"); }

  /// What a receiver makes room for after a message like this.
  static std::size_t room_for(const Layout& layout) {
    return std::max(kFirstRoom, Prefix::kSize + layout.payload_bytes());
  }

 private:
  /// That of the oldest receive under way, when the receiver has posted this message's.
  std::size_t next_room(std::size_t taken_before) {
    const std::size_t posted = taken_before == 0 ? room_before_ : rooms_.at(taken_before - 1);
    under_way_.insert(under_way_.end(), window_.post(posted), posted);
    const std::size_t room = under_way_.front();
    under_way_.pop_front();
    return room;
  }

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

class Receiver final : public Channel {
 public:
  Receiver(const ChannelId& id, Connection& connection, int process, int tag)
      : id_(id), connection_(connection), process_(process), tag_(tag) {}

  void send(Microbatch /*microbatch*/, Values /*values*/, std::size_t /*taken_before*/) override {
    throw Error("this end of a channel only receives");
  }

  void post(Microbatch microbatch) override {
    posted_.push_back(microbatch);
    for (std::size_t more = window_.post(room_); more > 0; --more) start_next();
  }

  Message take(Microbatch microbatch) override {
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
      buffer = make_buffer(prefix.rest());
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
    room_ = Sender::room_for(layout_);
    posted_.pop_front();
    return {.values = unpack(buffer, offset, layout_), .arrived = Clock::now()};
  }

  void abort() {
    const std::lock_guard lock(mutex_);
    for (const Receive& each : under_way_) each.work->abort();
  }

  /// Receives what was posted and not taken, and drops it.
  void take_rest() {
    while (!posted_.empty()) take(posted_.front());
  }

 private:
  struct Receive {
    at::Tensor buffer;
    WorkPtr work;
  };

  void start_next() {
    at::Tensor buffer = make_buffer(room_);
    WorkPtr work = connection_.start_receive(id_, buffer, process_, tag_);
    const std::lock_guard lock(mutex_);
    under_way_.push_back({std::move(buffer), std::move(work)});
    if (connection_.aborted) under_way_.back().work->abort();
  }

  /// The buffer of the first that is under way, filled.
  at::Tensor wait(Microbatch microbatch) {
    WorkPtr work;
    {
      const std::lock_guard lock(mutex_);
      work = under_way_.front().work;
    }
    const auto start = Clock::now();
    try {
      if (!work->wait(connection_.timeout) || connection_.aborted) throw Stopped();
    } catch (const std::exception& error) {
      if (connection_.aborted) throw Stopped();
      const std::string lost = "no " + to_text(id_) + " for microbatch " + std::to_string(microbatch);
      const std::string peer =
          "rank " + std::to_string(id_.from_rank) + " in process " + std::to_string(process_);
      if (Clock::now() - start >= connection_.timeout) {
        throw TimeoutError(lost + " within " + std::to_string(connection_.timeout.count()) + " ms; " + peer +
                           " has not sent them");
      }
      throw ConnectionError(lost + "; the connection to " + peer +
                            " is lost: " + connection_reason(error.what()));
    }
    const std::lock_guard lock(mutex_);
    at::Tensor buffer = std::move(under_way_.front().buffer);
    under_way_.pop_front();
    return buffer;
  }

  const ChannelId id_;
  Connection& connection_;
  const int process_;
  const int tag_;
  Layout layout_;
  std::size_t room_ = kFirstRoom;
  ReceiveWindow window_;
  std::deque<Microbatch> posted_;  // and not taken
  std::mutex mutex_;
  std::deque<Receive> under_way_;
};

class C10dTransport final : public Transport {
 public:
  C10dTransport(World& world, const Mesh& mesh, const Schedule& plan, std::chrono::milliseconds timeout)
      : mesh_(mesh),
        stages_(plan.stage_count()),
        skips_(plan.skips),
        first_tag_(world.impl().reserve_tags(4 * edges() * mesh.replicas())),
        connection_(world.impl(), timeout),
        inproc_(make_inproc_transport(timeout)) {}

  std::shared_ptr<Channel> connect(const ChannelId& id) override {
    const int from = mesh_.process_of({id.replica, id.from_rank});
    const int to = mesh_.process_of({id.replica, id.to_rank});
    if (from == to) return inproc_->connect(id);
    // Two tags for each direction: messages, and what had no room in them.
    const int tag = first_tag_ + 4 * (id.replica * edges() + edge_of(id)) + (id.carries_gradients() ? 2 : 0);
    if (from == mesh_.own_process()) {
      sends_to_.insert(to);
      std::shared_ptr<Sender>& sender = senders_[tag];
      if (!sender) sender = std::make_shared<Sender>(id, connection_, to, tag);
      return sender;
    }
    std::shared_ptr<Receiver>& receiver = receivers_[tag];
    if (!receiver) receiver = std::make_shared<Receiver>(id, connection_, from, tag);
    return receiver;
  }

  void begin_step(bool trace) override {
    inproc_->begin_step(trace);
    for (const auto& [tag, sender] : senders_) sender->begin_step();
  }

  std::optional<Undelivered> end_step() override {
    ProcessWaits::Scope waiting(connection_.world.waits(), "delivery of messages", receivers_of_messages());
    std::optional<Undelivered> lost = connection_.outbox.wait_all();
    if (lost) waiting.was_in_vain();
    return lost;
  }

  void abort() override {
    connection_.aborted = true;
    inproc_->abort();
    connection_.outbox.abort();
    for (const auto& [tag, receiver] : receivers_) receiver->abort();
  }

  void reset() override {
    inproc_->reset();
    if (connection_.aborted) return;
    for (const auto& [tag, receiver] : receivers_) receiver->take_rest();
  }

 private:
  /// Those to the next stage, and skips.
  int edges() const { return stages_ + static_cast<int>(skips_.size()); }
  int edge_of(const ChannelId& id) const {
    const Skip edge{.from = std::min(id.from, id.to), .to = std::max(id.from, id.to)};
    if (edge.from + 1 == edge.to) return edge.from;
    return stages_ + static_cast<int>(std::ranges::lower_bound(skips_, edge) - skips_.begin());
  }

  /// And this process itself.
  std::vector<int> receivers_of_messages() const {
    std::vector<int> processes(sends_to_.begin(), sends_to_.end());
    processes.push_back(mesh_.own_process());
    return processes;
  }

  const Mesh& mesh_;
  const Stage stages_;
  const std::vector<Skip> skips_;
  const int first_tag_;
  Connection connection_;
  std::unique_ptr<Transport> inproc_;
  std::map<int, std::shared_ptr<Sender>> senders_;
  std::set<int> sends_to_;
  std::map<int, std::shared_ptr<Receiver>> receivers_;
};

}  // namespace

std::unique_ptr<Transport> make_c10d_transport(World& world, const Mesh& mesh, const Schedule& plan,
                                               std::chrono::milliseconds timeout) {
  return std::make_unique<C10dTransport>(world, mesh, plan, timeout);
}

}  // namespace pipewright
