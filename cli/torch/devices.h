#pragma once

#include <c10/core/Device.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "pipewright/frontend/graph_stages.h"
#include "pipewright/runtime/values.h"
#include "pipewright/schedule/schedule.h"

namespace pipewright::cli {

/// --device: where the ranks compute.
struct DeviceOptions {
  std::string device = "cpu";

  void add_to(CLI::App& app);
  /// Throws ArgumentError where there is no such device.
  void check() const;
  bool is_cuda() const;
  /// Where each rank computes. `cuda` is, in a world of several processes, one device for each process of a
  /// machine; else one for each rank; in turn where there are fewer. REQUIRES: check().
  std::vector<at::Device> by_rank(Rank ranks) const;
};

StageDevices by_stage(std::vector<at::Device> by_rank, Placement placement);

/// Moves values to a device, without waiting for it.
void bring(Values& values, at::Device device);

}  // namespace pipewright::cli
