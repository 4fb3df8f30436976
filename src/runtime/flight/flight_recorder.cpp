#include "runtime/flight/flight_recorder.h"

#include <unistd.h>

#include <array>
#include <fstream>
#include <utility>

namespace pipewright {

FlightRecorder::FlightRecorder(const Schedule& plan, const Mesh& mesh, int processes)
    : mesh_(mesh),
      processes_(processes),
      placement_(plan.placement),
      microbatches_(plan.microbatches),
      since_(Clock::now()) {
  for (const Position position : mesh.local()) {
    ranks_.emplace(std::pair(position.replica, position.rank), std::make_unique<RankRecorder>(position));
  }
}

ProcessRecord FlightRecorder::read() const {
  ProcessRecord record;
  record.process = mesh_.own_process();
  record.processes = processes_;
  record.pid = getpid();
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) == 0) record.host = host.data();
  record.written = wall_clock(Clock::now());
  record.placement = placement_;
  record.microbatches = microbatches_;
  for (int replica = 0; replica < mesh_.replicas(); ++replica) {
    std::vector<int>& processes = record.process_of.emplace_back();
    for (Rank rank = 0; rank < mesh_.ranks(); ++rank) processes.push_back(mesh_.process_of({replica, rank}));
  }
  record.step = step();
  record.in_step = in_step_;
  record.since = wall_clock(since_);
  for (const auto& [position, recorder] : ranks_) record.ranks.push_back(recorder->read());
  return record;
}

std::filesystem::path write_record(const ProcessRecord& record,
                                   const std::filesystem::path& directory) noexcept {
  try {
    std::filesystem::create_directories(directory);
    const std::filesystem::path path = directory / ("flight." + std::to_string(record.process) + ".json");
    std::ofstream file(path, std::ios::binary);
    file << to_json(record) << std::flush;
    return file ? path : std::filesystem::path();
  } catch (const std::exception&) {
    return {};  // what failed first is what counts
  }
}

}  // namespace pipewright
