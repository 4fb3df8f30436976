#include "pipewright/frontend/trace.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "frontend/trace/describe.h"
#include "frontend/trace/generalize.h"
#include "frontend/trace/module_names.h"
#include "frontend/trace/recorder.h"
#include "frontend/trace/samples.h"
#include "frontend/trace/self_check.h"
#include "pipewright/base/error.h"

namespace pipewright {
namespace {

/// Gives parameters and buffers other values: what the program has made of them would be a constant
/// otherwise.
void change(const ModelState& state, SavedState& saved) {
  const at::NoGradGuard no_grad;
  for (const auto* named : {&state.parameters, &state.buffers}) {
    for (const auto& [name, tensor] : *named) {
      if (!tensor.is_floating_point()) continue;
      saved.before_write(tensor);
      tensor.data().mul_(0.5);
    }
  }
}

}  // namespace

Recording record(const StageModel& model, const ModelState& state, const Sample& sample) {
  SavedState saved(state, sample.inputs);
  if (sample.is_other_data) change(state, saved);
  Recorder recorder(state, sample, saved);
  const at::AutoGradMode grad(true);
  Values outputs;
  {
    const RecordingScope scope;
    outputs = model.forward(recorder.inputs());
  }
  return recorder.finish(outputs);
}

TracedModel trace(const StageModel& model, const Values& sample, const TraceOptions& options) {
  if (Recorder::current()) throw Error("a model is traced inside of a model that is traced");
  const ModelState state(model.module.get());
  const std::vector<std::optional<int>> batch_dims = batch_dims_of(sample, options);
  const std::vector<Sample> samples = make_samples(sample, batch_dims);
  std::vector<Recording> recordings;
  recordings.reserve(samples.size());
  for (const Sample& each : samples) {
    try {
      recordings.push_back(record(model, state, each));
    } catch (const c10::Error& error) {
      if (recordings.empty()) throw;     // its own error, with its own data
      if (each.is_other_data) continue;  // data that it does not take
      throw Error("the model fails with " + each.text() +
                  ", made from the sample: say what the batch is (batch_dims), or " +
                  "trace it for one size (dynamic_batch). It says: " + error.what_without_backtrace());
    }
  }
  TracedModel traced;
  traced.graph = generalize(recordings, traced.notes);
  name_modules(traced.graph, state);
  for (const auto* named : {&state.parameters, &state.buffers})
    traced.state.insert(named->begin(), named->end());
  check(traced.graph);
  traced.description = std::make_shared<const ProgramDescription>(describe(traced.graph, state, recordings));
  check_against(model, state, traced, samples.front());
  if (samples.front().batch > 0)
    check_against(model, state, traced, resized(sample, batch_dims, samples.front().batch + 2));
  return traced;
}

}  // namespace pipewright
