// Ranks on a CUDA device with streams of their own, or on several devices. All of them skip where there is no
// device, but for the first.

#include <gtest/gtest.h>

#include "pipewright/schedule/generate.h"
#include "runtime/on_cuda.h"

namespace pipewright {
namespace {

TEST(Devices, AreOneForEachRank) {
  PipelineOptions options = options_for(mlp());
  options.devices = {at::kCPU};
  const auto schedule = make_schedule({.name = "1F1B", .ranks = 2, .microbatches = 4});
  EXPECT_THROW(Pipeline(schedule, cut(mlp(), 2), options), ArgumentError);
}

class OnDevices : public OnCuda {};

TEST_F(OnDevices, RanksExchangeValuesBetweenThem) {
  const at::Device cuda(at::kCUDA, 0);
  for (const Model& model : {mlp(), gpt()}) {
    SCOPED_TRACE(model.name);
    const Schedule schedule = make_schedule({.name = "1F1B", .ranks = 3, .microbatches = 4});
    PipelineOptions options = options_for(model);
    options.devices = {cuda, at::kCPU, cuda};
    options.cuda_graph = true;
    Pipeline pipeline(schedule, cut(model, 3), options);
    expect_steps(pipeline, model, 3);
    EXPECT_EQ(pipeline.stage(1).module->parameters().at(0).device(), at::kCPU);
    EXPECT_EQ(pipeline.not_captured_for(), "the ranks are on several devices");
  }
}

/// Large enough for the device to fall behind, so that what is not ordered shows.
TEST_F(OnDevices, StreamsAreOrderedUnderLoad) {
  Model model = mlp();
  model.layers.clear();
  for (int layer = 0; layer < 8; ++layer) model.layers.push_back(dense(1024, 1024));
  model.data = [](Microbatch microbatches) {
    std::vector<MicrobatchValues> data;
    for (Microbatch k = 0; k < microbatches; ++k) {
      const auto seed = static_cast<std::uint64_t>(k);
      data.push_back({.inputs = {numbers(seed, {512, 1024})},
                      .targets = {numbers(seed + 100, {512, 1024})},
                      .stage_inputs = {}});
    }
    return data;
  };
  const auto data = model.data(8);
  Unsplit unsplit(model);
  const auto expected = unsplit.run(data);
  for (const char* name : {"DualPipeV", "ZBVZeroBubble", "Interleaved1F1B", "1F1B"}) {
    SCOPED_TRACE(name);
    const auto schedule = make_schedule({.name = name, .ranks = 4, .microbatches = 8});
    Pipeline pipeline = make(model, schedule, /*cuda_graph=*/false);
    for (int step = 0; step < 10; ++step) {
      pipeline.zero_grad();
      expect_losses(pipeline.step(presplit(data)), expected);
      expect_gradients(pipeline, unsplit.gradients());
    }
  }
}

TEST_F(OnDevices, TimesAreThoseOfTheDevice) {
  const Model model = mlp();
  const auto schedule = make_schedule({.name = "1F1B", .ranks = 2, .microbatches = 4});
  Pipeline pipeline = make(model, schedule, /*cuda_graph=*/false);
  pipeline.step(presplit(model.data(4)));
  const Timeline timeline = pipeline.step(presplit(model.data(4)), {.trace = true}).timeline;
  std::map<std::pair<int, int>, double> forward_ends;
  for (const auto& rank : timeline.ranks) {
    double before = 0;
    for (const TimedAction& timed : rank) {
      if (!is_compute(timed.action.kind)) continue;
      EXPECT_GE(timed.start, before);
      EXPECT_GT(timed.end, timed.start);
      before = timed.end;
      if (timed.action.kind == Kind::F)
        forward_ends[{timed.action.stage, timed.action.microbatch}] = timed.end;
    }
  }
  for (const TimedAction& timed : timeline.ranks.at(1)) {
    if (timed.action.kind != Kind::F) continue;
    EXPECT_GE(timed.start, (forward_ends[{0, timed.action.microbatch}])) << to_text(timed.action);
  }
}

}  // namespace
}  // namespace pipewright
