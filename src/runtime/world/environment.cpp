#include <charconv>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "pipewright/base/error.h"
#include "pipewright/runtime/world.h"

namespace pipewright {
namespace {

/// The variables by which a launcher says who a process is.
struct Launcher {
  const char* rank;
  const char* size;
  const char* local_rank;
  /// Set only in processes that it has started, where rank and size can also be there otherwise.
  const char* sign = nullptr;
};

constexpr Launcher kLaunchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
    // A batch script has the first two as well, but was not started by srun.
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_ID"},
};

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value && *value ? value : nullptr;
}

int number(const char* name, int least, int most) {
  const std::string_view text = variable(name);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    throw ArgumentError(std::string(name) + " must be a number from " + std::to_string(least) + " to " +
                        std::to_string(most) + ", not '" + std::string(text) + "'");
  }
  return value;
}

void read_meeting_point(const Launcher& launcher, WorldOptions& options) {
  if (variable("MASTER_PORT")) {
    options.port = static_cast<std::uint16_t>(number("MASTER_PORT", 1, 65535));
  }
  if (const char* address = variable("MASTER_ADDR")) {
    options.address = address;
  } else if (const char* node = variable("SLURM_LAUNCH_NODE_IPADDR"); node && launcher.sign) {
    options.address = node;
  } else if (options.size > 1) {
    throw ArgumentError(std::string(launcher.size) + " is " + std::to_string(options.size) +
                        ", but MASTER_ADDR is not set: give the address of rank 0's machine, and a free "
                        "port there as MASTER_PORT");
  }
}

}  // namespace

std::optional<WorldOptions> world_from_environment() {
  for (const Launcher& launcher : kLaunchers) {
    if (launcher.sign && !variable(launcher.sign)) continue;
    if (!variable(launcher.rank) && !variable(launcher.size)) continue;
    for (const char* needed : {launcher.rank, launcher.size}) {
      if (!variable(needed)) {
        throw ArgumentError(std::string(needed) +
                            " is not set, but its companion is: a process of a world "
                            "needs both " +
                            launcher.rank + " and " + launcher.size);
      }
    }
    WorldOptions options;
    options.size = number(launcher.size, 1, std::numeric_limits<int>::max());
    options.rank = number(launcher.rank, 0, options.size - 1);
    if (variable(launcher.local_rank)) options.local_rank = number(launcher.local_rank, 0, options.size - 1);
    read_meeting_point(launcher, options);
    if (const char* agent = variable("TORCHELASTIC_USE_AGENT_STORE")) {
      options.served_by_launcher = std::string_view(agent) == "True";
    }
    if (const char* restarts = variable("TORCHELASTIC_RESTART_COUNT")) options.attempt = restarts;
    return options;
  }
  return std::nullopt;
}

}  // namespace pipewright
