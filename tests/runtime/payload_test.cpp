#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>

#include "pipewright/runtime/pipeline.h"
#include "runtime/training_schedules.h"
#include "runtime/worlds.h"

namespace pipewright {
namespace {

class WorldsPayload : public testing::TestWithParam<ScheduleInfo> {};
INSTANTIATE_TEST_SUITE_P(Every, WorldsPayload, testing::ValuesIn(training_schedules()), schedule_test_name);

/// Stages that hand on what they get, so that only messages take time.
void expect_passage(Pipeline& pipeline, bool has_inputs, std::int64_t elements) {
  Batch batch;
  batch.microbatches.resize(1);
  for (MicrobatchValues& each : batch.microbatches) {
    each.inputs = {torch::full({elements}, 0.5F).requires_grad_()};
  }
  const StepResult result = pipeline.step(batch);
  EXPECT_NEAR(result.loss.item<double>(), elements == 0 ? 0 : 0.5, 1e-6);
  if (!has_inputs) return;
  for (const MicrobatchValues& each : batch.microbatches) {
    const at::Tensor& grad = each.inputs[0].grad();
    ASSERT_TRUE(grad.defined());
    EXPECT_TRUE(torch::allclose(grad, torch::full_like(grad, 1 / static_cast<double>(elements)), 1e-6, 0));
  }
}

TEST_P(WorldsPayload, OfAnySizePasses) {
  const Schedule schedule = make_schedule(GetParam(), 2, 1);
  const Loss loss = [](const Values& outputs, const Values&) {
    return outputs[0].sum() / static_cast<double>(std::max<std::int64_t>(1, outputs[0].numel()));
  };
  for (const bool deferred : {false, true}) {
    SCOPED_TRACE(deferred ? "late receives" : "early receives");
    expect_no_errors(in_worlds(2, [&](const auto& world) {
      PipelineOptions options;
      options.loss = loss;
      options.world = world;
      options.timeout = std::chrono::seconds(60);
      options.lower.defer_receives = deferred;
      Pipeline pipeline(schedule, [](Stage) { return StageModel(); }, options);
      // Around what a receiver first has room for, growing and shrinking, up to 256 MiB.
      for (const std::int64_t elements : {0, 1, 1024, 16 * 1024 - 16, 16 * 1024, 1 << 20, 3, 64 << 20, 0}) {
        SCOPED_TRACE(std::to_string(elements) + " elements");
        expect_passage(pipeline, world->rank() == 0, elements);
      }
    }));
  }
}

}  // namespace
}  // namespace pipewright
