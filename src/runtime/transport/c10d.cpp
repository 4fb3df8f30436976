#include "runtime/transport/c10d.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "runtime/transport/direct_channel.h"
#include "runtime/transport/host_channel.h"
#include "runtime/transport/inproc.h"

namespace pipewright {
namespace {

/// For waits that others end.
constexpr std::chrono::hours kForever{24 * 365};

class C10dTransport final : public Transport {
 public:
  C10dTransport(World& world, const Mesh& mesh, const Schedule& plan, Carriers carriers,
                std::chrono::milliseconds timeout)
      : mesh_(mesh),
        stages_(plan.stage_count()),
        skips_(plan.skips),
        carriers_(std::move(carriers)),
        first_tag_(world.impl().reserve_tags(2 * kTags * edges() * mesh.replicas())),
        connection_(world.impl(), timeout),
        inproc_(make_inproc_transport(timeout)) {}
  ~C10dTransport() override { abort(); }
  C10dTransport(const C10dTransport&) = delete;
  C10dTransport& operator=(const C10dTransport&) = delete;

  std::shared_ptr<Channel> connect(const ChannelId& id) override {
    const int from = mesh_.process_of({id.replica, id.from_rank});
    const int to = mesh_.process_of({id.replica, id.to_rank});
    if (from == to) return inproc_->connect(id);
    const int direction = 2 * (id.replica * edges() + edge_of(id)) + (id.carries_gradients() ? 1 : 0);
    const int tag = first_tag_ + kTags * direction;
    const auto carrier = carriers_.find({id.replica, id.from, id.to});
    return from == mesh_.own_process()
               ? connect_sender(id, to, tag, carrier == carriers_.end() ? Carrier() : carrier->second)
               : connect_receiver(id, from, tag, carrier == carriers_.end() ? Carrier() : carrier->second);
  }

  void begin_step(bool trace) override {
    inproc_->begin_step(trace);
    for (const auto& [tag, sender] : senders_) sender->begin_step();
    for (const auto& [tag, sender] : direct_senders_) sender->begin_step();
    for (const auto& [tag, receiver] : direct_receivers_) receiver->begin_step(trace);
  }

  std::optional<Undelivered> end_step() override {
    ProcessWaits::Scope waiting(connection_.world.waits(), "delivery of messages", receivers_of_messages());
    std::optional<Undelivered> lost;
    const auto note = [&lost](std::optional<Undelivered> one) {
      if (!lost) lost = std::move(one);
    };
    for (const auto& [tag, sender] : direct_senders_) note(sender->wait_all());
    note(connection_.outbox.wait_all());
    if (lost) waiting.was_in_vain();
    return lost;
  }

  void abort() override {
    connection_.aborted = true;
    inproc_->abort();
    connection_.outbox.abort();
    for (const auto& [tag, receiver] : receivers_) receiver->abort();
    for (const auto& [tag, receiver] : direct_receivers_) receiver->abort();
    for (const auto& [tag, sender] : direct_senders_) sender->abort();
  }

  void reset() override {
    inproc_->reset();
    if (connection_.aborted) return;
    for (const auto& [tag, receiver] : receivers_) receiver->take_rest();
    for (const auto& [tag, receiver] : direct_receivers_) receiver->take_rest();
  }

 private:
  /// Of each direction: for messages, for what had no room in them, for a receiver's word.
  static constexpr int kTags = 3;

  std::shared_ptr<Channel> connect_sender(const ChannelId& id, int to, int tag, const Carrier& carrier) {
    sends_to_.insert(to);
    std::shared_ptr<HostSender>& sender = senders_[tag];
    if (!sender) sender = std::make_shared<HostSender>(id, connection_, to, tag);
    if (!carrier) return sender;
    std::shared_ptr<DirectSender>& direct = direct_senders_[tag];
    if (!direct)
      direct = std::make_shared<DirectSender>(DirectLink{id, connection_, carrier, to, tag + 2}, sender);
    return direct;
  }

  std::shared_ptr<Channel> connect_receiver(const ChannelId& id, int from, int tag, const Carrier& carrier) {
    if (!carrier) {
      std::shared_ptr<HostReceiver>& receiver = receivers_[tag];
      if (!receiver)
        receiver = std::make_shared<HostReceiver>(id, connection_, from, tag, connection_.timeout);
      return receiver;
    }
    std::shared_ptr<DirectReceiver>& direct = direct_receivers_[tag];
    if (!direct) {
      auto headers = std::make_shared<HostReceiver>(id, connection_, from, tag, kForever);
      direct = std::make_shared<DirectReceiver>(DirectLink{id, connection_, carrier, from, tag + 2},
                                                std::move(headers));
    }
    return direct;
  }

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
  const Carriers carriers_;
  const int first_tag_;
  Connection connection_;
  std::unique_ptr<Transport> inproc_;
  std::set<int> sends_to_;
  // By tag.
  std::map<int, std::shared_ptr<HostSender>> senders_;  // also those for the headers of direct ones
  std::map<int, std::shared_ptr<HostReceiver>> receivers_;
  std::map<int, std::shared_ptr<DirectSender>> direct_senders_;
  std::map<int, std::shared_ptr<DirectReceiver>> direct_receivers_;
};

}  // namespace

std::unique_ptr<Transport> make_c10d_transport(World& world, const Mesh& mesh, const Schedule& plan,
                                               Carriers carriers, std::chrono::milliseconds timeout) {
  return std::make_unique<C10dTransport>(world, mesh, plan, std::move(carriers), timeout);
}

}  // namespace pipewright
