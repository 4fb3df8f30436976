#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "pipewright/flight/record.h"
#include "pipewright/schedule/schedule.h"
#include "runtime/flight/rank_recorder.h"
#include "runtime/world/mesh.h"

namespace pipewright {

/// What the ranks of a pipeline in this process did last. Always on; can be read from any thread.
class FlightRecorder {
 public:
  /// The mesh is kept by reference and outlives it. `processes`: of the world.
  FlightRecorder(const Schedule& plan, const Mesh& mesh, int processes);

  RankRecorder& rank(Position position) { return *ranks_.at({position.replica, position.rank}); }

  /// A step, while it lives.
  class InStep {
   public:
    explicit InStep(FlightRecorder& recorder) : recorder_(recorder) {
      ++recorder_.step_;
      recorder_.since_ = Clock::now();
      recorder_.in_step_ = true;
    }
    ~InStep() {
      recorder_.since_ = Clock::now();
      recorder_.in_step_ = false;
    }
    InStep(const InStep&) = delete;
    InStep& operator=(const InStep&) = delete;

   private:
    FlightRecorder& recorder_;
  };
  std::int64_t step() const { return step_.load(std::memory_order_relaxed); }

  ProcessRecord read() const;

 private:
  const Mesh& mesh_;
  const int processes_;
  const Placement placement_;
  const Microbatch microbatches_;
  std::map<std::pair<int, Rank>, std::unique_ptr<RankRecorder>> ranks_;
  std::atomic<std::int64_t> step_ = 0;
  std::atomic<bool> in_step_ = false;
  std::atomic<Clock::time_point> since_;
};

/// Writes a record into a directory, which is made where it is missing, as `flight.<process>.json`; the path,
/// or nothing where it cannot be written.
std::filesystem::path write_record(const ProcessRecord& record,
                                   const std::filesystem::path& directory) noexcept;

}  // namespace pipewright
