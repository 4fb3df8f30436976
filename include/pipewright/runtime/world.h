#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace pipewright {

/// Where a process stands among those that were started together, and where they meet.
struct WorldOptions {
  int rank = 0;
  int size = 1;
  /// Among those on the same machine.
  int local_rank = 0;
  /// Of rank 0, which the others connect to.
  std::string address = "127.0.0.1";
  std::uint16_t port = 29500;
  /// True where the launcher itself listens there, as torchrun's agent does.
  bool served_by_launcher = false;
  /// Tells attempts apart that meet at the same place one after the other.
  std::string attempt = "0";
  /// The longest to wait for the others at the start.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
};

/// What a launcher has told this process by its environment: RANK and WORLD_SIZE (torchrun,
/// `pipewright launch`), or the variables of mpirun and srun, with MASTER_ADDR and
/// MASTER_PORT. Nothing where there was no launcher. Throws ArgumentError where the
/// variables do not fit together.
std::optional<WorldOptions> world_from_environment();

/// The processes that train together. Every process makes one, and all make their
/// pipelines and take their steps in the same order.
///
/// When a step fails anywhere, it fails everywhere, and the world is over: the
/// processes have to be started again.
class World {
 public:
  /// Waits for all processes. Throws Error, on every one, where a rank was given
  /// twice, the sizes differ or somebody does not come in time.
  explicit World(const WorldOptions& options);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const;
  int size() const;

  /// What every process says, by rank. All call it at the same point.
  std::vector<std::string> all_gather(const std::string& text);

  class Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace pipewright
