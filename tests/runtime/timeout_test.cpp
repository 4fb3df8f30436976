#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "pipewright/schedule/csv.h"
#include "pipewright/schedule/generate.h"
#include "runtime/compare.h"

namespace pipewright {
namespace {

using std::chrono::milliseconds;

std::atomic<int> delay = 0;

void sleep_now() { std::this_thread::sleep_for(milliseconds(delay)); }

struct SleepsInBackward : torch::autograd::Function<SleepsInBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list grads) {
    sleep_now();
    return grads;
  }
};

Model sleeper(std::size_t layer, bool in_forward) {
  Model model = dropout();
  model.layers = std::vector(4, dense(4, 4));
  model.layers[layer] = function([in_forward](const Values& inputs) {
    if (in_forward) sleep_now();
    return Values{in_forward ? inputs.at(0) : SleepsInBackward::apply(inputs.at(0))};
  });
  return model;
}

/// What happens to a step of two ranks if a layer sleeps longer than a time-out of 300 ms.
void expect_timeout(std::size_t layer, bool in_forward, Rank waiting, const std::string& action,
                    const std::vector<std::string>& parts) {
  const Model model = sleeper(layer, in_forward);
  const auto data = model.data(3);
  Unsplit unsplit(model);
  delay = 0;
  const auto expected = unsplit.run(data);
  PipelineOptions options = options_for(model);
  options.timeout = milliseconds(300);
  Pipeline pipeline(make_schedule({.name = "1F1B", .ranks = 2, .microbatches = 3}), cut(model, 2), options);

  delay = 900;
  const auto start = std::chrono::steady_clock::now();
  try {
    pipeline.step(presplit(data));
    ADD_FAILURE() << "the step succeeded";
  } catch (const StepError& error) {
    EXPECT_EQ(error.rank, waiting);
    EXPECT_EQ(to_text(error.action), action);
    const std::string text = error.what();
    for (const std::string& part : parts) {
      EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
    }
    EXPECT_THROW(std::rethrow_exception(error.cause), TimeoutError);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));

  delay = 0;
  pipeline.zero_grad();
  expect_losses(pipeline.step(presplit(data)), expected);
  expect_gradients(pipeline, unsplit.gradients());
}

TEST(Timeout, OfAnActivationNamesActionChannelAndPeer) {
  expect_timeout(0, true, 1, "1F0", {"rank 1", "1F0", "stage 0 (rank 0)", "stage 1 (rank 1)", "300 ms"});
}

TEST(Timeout, OfAGradientNamesActionChannelAndPeer) {
  expect_timeout(3, false, 0, "0B0", {"rank 0", "0B0", "stage 1 (rank 1)", "stage 0 (rank 0)", "300 ms"});
}

TEST(Timeout, IsForOneWaitAndNotForTheStep) {
  const Model model = sleeper(0, true);
  PipelineOptions options = options_for(model);
  options.timeout = milliseconds(1000);
  Pipeline pipeline(make_schedule({.name = "1F1B", .ranks = 2, .microbatches = 8}), cut(model, 2), options);
  delay = 200;
  const auto start = std::chrono::steady_clock::now();
  pipeline.step(presplit(model.data(8)));
  EXPECT_GT(std::chrono::steady_clock::now() - start, milliseconds(1600));
  delay = 0;
}

TEST(Timeout, OfAnEvalIsAnErrorToo) {
  const Model model = sleeper(0, true);
  PipelineOptions options = options_for(model);
  options.timeout = milliseconds(100);
  Pipeline pipeline(make_schedule({.name = "ZBVZeroBubble", .ranks = 2, .microbatches = 2}), cut(model, 4),
                    options);
  delay = 500;
  EXPECT_THROW(pipeline.eval(presplit(model.data(2))), StepError);
  delay = 0;
}

}  // namespace
}  // namespace pipewright
