#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "pipewright/runtime/world.h"
#include "runtime/world/endable_waits.h"

namespace pipewright {

/// What the runtime needs of a world, with c10d's types.
class World::Impl {
 public:
  explicit Impl(WorldOptions options);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  int rank() const { return options_.rank; }
  int size() const { return options_.size; }

  /// For messages between two processes. Its methods may be called from any thread, one at a
  /// time: hold `messages_mutex` while one starts something, not while waiting for it.
  c10d::Backend& messages() { return *messages_; }
  std::mutex& messages_mutex() { return messages_mutex_; }

  /// For what all processes do together, called by the thread that uses the world.
  c10d::Backend& control() { return *control_; }
  /// Waits for that. Throws StepError when something fails meanwhile.
  void finish(const c10::intrusive_ptr<c10d::Work>& work);

  /// For what some of the processes, of which this is one, do together with tensors on devices of that type;
  /// ranked as they are listed. All of them ask for it at the same point.
  c10d::Backend& group(const std::string& name, const std::vector<int>& processes, at::DeviceType device);

  /// A range of message tags that nobody else uses: the same in every process,
  /// because all ask in the same order.
  int reserve_tags(int count);

  std::vector<std::string> all_gather(const std::string& text);

  /// Tells every process that something has failed; only the first word counts.
  void report_failure(const std::string& text) noexcept;
  /// The first word, where something has failed.
  std::optional<std::string> failure() const;

  /// Calls `then` on a thread of its own, once, when something fails. At once, if it has already.
  class Subscription;
  std::unique_ptr<Subscription> on_failure(std::function<void(const std::string&)> then);

 private:
  void join();
  /// After a refusal: rank 0 waits until the others have heard of it.
  void wait_until_told() noexcept;
  void leave() noexcept;
  void watch(const c10::intrusive_ptr<c10d::Store>& store);
  void tell(const std::string& text);
  /// Whether every process can have a CUDA device of its own, as NCCL demands. All processes ask.
  bool has_device_each();

  WorldOptions options_;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::Backend> messages_;
  std::mutex messages_mutex_;
  c10::intrusive_ptr<c10d::Backend> control_;
  std::map<std::string, c10::intrusive_ptr<c10d::Backend>> groups_;
  bool uses_nccl_ = false;
  int next_tag_ = 0;

  mutable std::mutex mutex_;  // what follows
  std::optional<std::string> failure_;
  bool leaving_ = false;
  std::map<int, std::function<void(const std::string&)>> subscribers_;
  int next_subscriber_ = 0;

  std::shared_ptr<EndableWaits> waits_ = std::make_shared<EndableWaits>();
  std::thread watcher_;
};

/// Ends with its object: afterwards the function is not called any more.
class World::Impl::Subscription {
 public:
  Subscription(Impl& world, int id) : world_(world), id_(id) {}
  ~Subscription() {
    const std::lock_guard lock(world_.mutex_);
    world_.subscribers_.erase(id_);
  }
  Subscription(const Subscription&) = delete;
  Subscription& operator=(const Subscription&) = delete;

 private:
  Impl& world_;
  int id_;
};

}  // namespace pipewright
