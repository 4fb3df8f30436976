#pragma once

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/runtime/pipeline.h"
#include "runtime/models.h"

namespace pipewright {

using Gradients = std::map<std::string, at::Tensor>;

/// A model run whole: a loop over the microbatches, each loss divided and sent backward.
class Unsplit {
 public:
  struct Result {
    at::Tensor loss;
    std::vector<at::Tensor> losses;
    std::vector<Values> outputs;
  };

  explicit Unsplit(const Model& model);

  /// Adds to the gradients. `denominator`: of the loss, and times `accumulation` of the
  /// gradients; not given: the number of microbatches.
  Result run(const std::vector<MicrobatchValues>& microbatches, std::optional<double> denominator = {},
             int accumulation = 1);
  /// By global name; undefined where there is none. Tied parameters have the sum.
  Gradients gradients() const;
  Slice& module() { return *module_; }

 private:
  Model model_;
  std::shared_ptr<Slice> module_;
};

/// Alike in presence, shape, dtype and, to 1e-5 of the largest, in values.
testing::AssertionResult close(const at::Tensor& actual, const at::Tensor& expected);

void expect_losses(const StepResult& actual, const Unsplit::Result& expected);
/// Every parameter by its name, those without gradient too; of all processes together.
void expect_gradients(const Pipeline& pipeline, const Gradients& expected);

/// Loss and tied parameters of the model, and a time-out that ends a hung test.
PipelineOptions options_for(const Model& model);
Pipeline make_pipeline(const Model& model, const Schedule& schedule);
/// In this process alone, for tests that look into it.
Pipeline make_local_pipeline(const Model& model, const Schedule& schedule);

/// The processes that run these tests together; null where this one runs them alone.
std::shared_ptr<World> test_world();
/// Spreads the schedule's ranks over them, neighbours apart from each other.
PipelineOptions in_world(PipelineOptions options, const Schedule& schedule);

Batch presplit(std::vector<MicrobatchValues> microbatches);
/// Microbatches put together again along dimension 0.
Batch joined(const std::vector<MicrobatchValues>& microbatches);

/// What a step that is expected to fail throws.
StepError failure_of(Pipeline& pipeline, const std::vector<MicrobatchValues>& microbatches);

/// One step of the model by the schedule: losses and gradients as without it.
void expect_parity(const Model& model, const Schedule& schedule);
void expect_parity(const Model& model, const Schedule& schedule, PipelineOptions options);

}  // namespace pipewright
