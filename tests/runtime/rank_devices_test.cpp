#include "runtime/device/rank_devices.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace pipewright {
namespace {

class Holds : public torch::nn::Module {
 public:
  explicit Holds(c10::Device device) { register_buffer("held", torch::empty({1}, device)); }
};

/// Stages on devices, or without anything that is on one; each on its own rank.
std::vector<c10::Device> devices_of(const std::vector<std::optional<c10::Device>>& stages,
                                    const std::vector<c10::Device>& wanted = {}) {
  std::map<Stage, StageModel> models;
  Placement placement;
  for (const auto& device : stages) {
    const auto stage = static_cast<Stage>(placement.size());
    StageModel& model = models[stage];
    if (device) model.module = std::make_shared<Holds>(*device);
    placement.push_back(stage);
  }
  RankDevices devices;
  devices.add(0, models, placement, wanted);
  std::vector<c10::Device> all;
  for (Rank rank = 0; rank < static_cast<Rank>(stages.size()); ++rank) all.push_back(devices.at(0, rank));
  return all;
}

const c10::Device kMeta(c10::kMeta);
const c10::Device kCpu(c10::kCPU);

TEST(DevicesOfRanks, AreThoseOfTheirStages) {
  EXPECT_EQ(devices_of({kMeta, kCpu}), (std::vector{kMeta, kCpu}));
}

TEST(DevicesOfRanks, ThatHoldNothingAreThoseOfTheOthers) {
  EXPECT_EQ(devices_of({kMeta, std::nullopt, kCpu, std::nullopt}), (std::vector{kMeta, kMeta, kCpu, kCpu}));
  EXPECT_EQ(devices_of({std::nullopt, kMeta}), (std::vector{kMeta, kMeta}));
  EXPECT_EQ(devices_of({std::nullopt, std::nullopt}), (std::vector{kCpu, kCpu}));
  EXPECT_EQ(devices_of({kCpu, std::nullopt}, {kCpu, kMeta}), (std::vector{kCpu, kMeta}));
}

}  // namespace
}  // namespace pipewright
