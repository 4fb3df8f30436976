#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/runtime/world.h"
#include "runtime/world/endable_waits.h"
#include "runtime/world/failure_watch.h"
#include "runtime/world/process_groups.h"
#include "runtime/world/process_waits.h"

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

  /// For what some of the processes, of which this is one, do together with tensors on a device; ranked as
  /// they are listed. All of them ask for it at the same point, and do the first operation, after which they
  /// are connected. Throws StepError when one of them does not come.
  ProcessGroup group(const std::string& name, const std::vector<int>& processes, c10::Device device,
                     const FirstOperation& first);

  /// A range of message tags that nobody else uses: the same in every process,
  /// because all ask in the same order.
  int reserve_tags(int count);

  std::vector<std::string> all_gather(const std::string& text);

  /// What has failed, as all processes see it, given what this one has noticed. Afterwards the world is over.
  std::string settle(const Notice& notice);
  /// The word of that, where something has failed.
  std::optional<std::string> failure() const;

  /// What a pipeline tells of itself, and hears: both on a thread of the world's, and `failed` once, or at
  /// once if something has failed already.
  struct Observer {
    std::function<ProcessRecord()> describe;
    std::function<void(const std::string& word)> failed;
  };
  class Subscription;
  std::unique_ptr<Subscription> observe(Observer observer);

  /// What this process waits for beside the actions of its ranks.
  ProcessWaits& waits() { return waits_of_process_; }

  /// While it lives, the processes wait for each other so long, and not as long as at the start.
  class Patience {
   public:
    /// Without a world nobody waits.
    Patience(World* world, std::chrono::milliseconds time) : world_(world ? &world->impl() : nullptr) {
      if (world_) before_ = std::exchange(world_->patience_, time);
    }
    ~Patience() {
      if (world_) world_->patience_ = before_;
    }
    Patience(const Patience&) = delete;
    Patience& operator=(const Patience&) = delete;

   private:
    Impl* world_;
    std::chrono::milliseconds before_{};
  };

 private:
  void join();
  /// After a refusal: rank 0 waits until the others have heard of it.
  void wait_until_told() noexcept;
  void tell(const std::string& text);
  ProcessRecord describe();
  /// Throws what the processes settle.
  [[noreturn]] void fail(Notice::Kind kind, const std::string& what);
  void finish(const c10::intrusive_ptr<c10::ivalue::Future>& future, const std::string& what,
              const std::vector<int>& among);
  std::vector<ProcessGroup> groups();

  WorldOptions options_;
  c10::intrusive_ptr<c10d::Store> store_;
  ProcessGroup messages_;
  std::mutex messages_mutex_;
  ProcessGroup control_;
  std::mutex groups_mutex_;
  std::map<std::string, ProcessGroup> groups_;
  int next_tag_ = 0;
  std::vector<int> all_processes_;
  std::chrono::milliseconds patience_;
  ProcessWaits waits_of_process_;

  mutable std::mutex mutex_;  // what follows
  std::optional<std::string> failure_;
  std::map<int, Observer> observers_;
  int next_observer_ = 0;

  std::shared_ptr<EndableWaits> waits_ = std::make_shared<EndableWaits>();
  std::unique_ptr<FailureWatch> watch_;
};

/// Ends with its object: afterwards the function is not called any more.
class World::Impl::Subscription {
 public:
  Subscription(Impl& world, int id) : world_(world), id_(id) {}
  ~Subscription() {
    const std::lock_guard lock(world_.mutex_);
    world_.observers_.erase(id_);
  }
  Subscription(const Subscription&) = delete;
  Subscription& operator=(const Subscription&) = delete;

 private:
  Impl& world_;
  int id_;
};

}  // namespace pipewright
