#pragma once

#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <memory>
#include <string>
#include <vector>

#include "pipewright/schedule/generate.h"
#include "runtime/compare.h"
#include "runtime/models.h"

namespace pipewright {

/// With everything on the first CUDA device, whatever the other tests use.
class OnCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (test_world()) GTEST_SKIP() << "it is for one process";
    if (!torch::cuda::is_available()) GTEST_SKIP() << "there is no CUDA device";
    device_ = std::make_unique<OnDevice>(at::Device(at::kCUDA, 0));
  }

  static Pipeline make(const Model& model, const Schedule& schedule, bool cuda_graph = true) {
    PipelineOptions options = options_for(model);
    options.cuda_graph = cuda_graph;
    return {schedule, cut(model, schedule.stage_count()), options};
  }

 private:
  std::unique_ptr<OnDevice> device_;
};

/// The same data with other numbers for each step.
inline std::vector<MicrobatchValues> data_of_step(const Model& model, Microbatch microbatches, int step) {
  std::vector<MicrobatchValues> data = model.data(microbatches);
  for (MicrobatchValues& microbatch : data) {
    for (at::Tensor& input : microbatch.inputs) {
      if (input.is_floating_point()) input = input + 0.1 * step;
    }
  }
  return data;
}

/// Steps of a pipeline beside the unsplit model; the last one's result.
inline StepResult expect_steps(Pipeline& pipeline, const Model& model, int steps) {
  StepResult result;
  for (int step = 0; step < steps; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    const auto data = data_of_step(model, pipeline.plan().microbatches, step);
    Unsplit unsplit(model);
    const auto expected = unsplit.run(data);
    pipeline.zero_grad();
    result = pipeline.step(presplit(data));
    expect_losses(result, expected);
    expect_gradients(pipeline, unsplit.gradients());
  }
  return result;
}

/// Two ranks of two stages each.
inline const Schedule& interleaved() {
  static const Schedule schedule =
      make_schedule({.name = "Interleaved1F1B", .ranks = 2, .microbatches = 4, .stages_per_rank = 2});
  return schedule;
}

}  // namespace pipewright
