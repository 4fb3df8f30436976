#include "pipewright/runtime/boundary.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "pipewright/schedule/csv.h"
#include "runtime/compare.h"

namespace pipewright {
namespace {

std::string refusal(const Values& values, const Boundary& boundary) {
  try {
    check_boundary(values, boundary, 3, "input");
  } catch (const BoundaryError& error) {
    return error.what();
  }
  return "";
}

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
  }
}

TEST(Slot, IsWrittenAsDtypeAndSizes) {
  EXPECT_EQ(to_text(Slot{.sizes = {-1, 64}}), "float32[-1, 64]");
  EXPECT_EQ(to_text(Slot{.sizes = {}, .dtype = at::kBool}), "bool[]");
  EXPECT_EQ(to_text(Slot{.sizes = {8}, .dtype = at::kLong, .device = at::Device("cuda:0")}),
            "int64[8] on cuda:0");
}

TEST(Value, IsWrittenAsASlot) {
  EXPECT_EQ(to_text(torch::zeros({2, 3})), "float32[2, 3]");
  EXPECT_EQ(to_text(torch::zeros({0}, at::kHalf)), "float16[0]");
  EXPECT_EQ(to_text(at::Tensor()), "absent");
}

TEST(Boundary, TakesWhatFits) {
  const Boundary boundary{{.sizes = {-1, 4}}, {.sizes = {2}, .dtype = at::kBool, .optional = true}};
  EXPECT_EQ(refusal({torch::zeros({7, 4}), torch::zeros({2}, at::kBool)}, boundary), "");
  EXPECT_EQ(refusal({torch::zeros({0, 4}), at::Tensor()}, boundary), "");
  EXPECT_EQ(refusal({torch::zeros({1, 4}), at::Tensor()},
                    {{.sizes = {1, 4}, .device = at::Device(at::kCPU)}, {.sizes = {}, .optional = true}}),
            "");
}

TEST(Boundary, NamesStageSlotExpectedAndGot) {
  const Boundary boundary{{.sizes = {-1, 4}}, {.sizes = {2}, .dtype = at::kBool}};
  const at::Tensor mask = torch::zeros({2}, at::kBool);
  expect_parts(refusal({torch::zeros({7, 5}), mask}, boundary),
               {"stage 3", "input", "0", "float32[-1, 4]", "float32[7, 5]"});
  expect_parts(refusal({torch::zeros({7, 4}), torch::zeros({2}, at::kInt)}, boundary),
               {"stage 3", "input", "1", "bool[2]", "int32[2]"});
  expect_parts(refusal({torch::zeros({7, 4}, at::kDouble), mask}, boundary),
               {"float32[-1, 4]", "float64[7, 4]"});
  expect_parts(refusal({torch::zeros({7, 4, 1}), mask}, boundary), {"float32[-1, 4]", "float32[7, 4, 1]"});
  expect_parts(refusal({torch::zeros({7, 4}), at::Tensor()}, boundary), {"1", "bool[2]", "absent"});
  expect_parts(refusal({torch::zeros({7, 4})}, boundary), {"stage 3", "2", "1"});
  expect_parts(refusal({torch::zeros({1})}, {{.sizes = {1}, .device = at::Device("cuda:0")}}), {"cuda:0"});
}

/// A stage that gives what it gets, with boundaries.
StageModel declared(std::optional<Boundary> inputs, std::optional<Boundary> outputs = {}) {
  StageModel made;
  made.inputs = std::move(inputs);
  made.outputs = std::move(outputs);
  return made;
}

at::Tensor first_sum(const Values& outputs, const Values&) { return outputs.at(0).sum(); }

constexpr const char* kTwoRanks = "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n";

std::vector<MicrobatchValues> data_of(const Values& first, const Values& second) {
  return {{first, {}, {}}, {second, {}, {}}};
}

TEST(DeclaredBoundary, IsCheckedOnEveryMicrobatch) {
  const Boundary four{{.sizes = {-1, 4}}};
  const Values good{torch::ones({3, 4})};
  const Values bad{torch::ones({3, 5})};
  Pipeline pipeline(parse_csv(kTwoRanks),
                    [&](Stage stage) { return stage == 0 ? StageModel() : declared(four); },
                    {.loss = first_sum});
  pipeline.step(presplit(data_of(good, good)));
  const StepError error = failure_of(pipeline, data_of(good, bad));
  EXPECT_EQ(to_text(error.action), "1F1");
  expect_parts(error.what(), {"stage 1", "input", "slot 0", "float32[-1, 4]", "float32[3, 5]"});
  EXPECT_THROW(std::rethrow_exception(error.cause), BoundaryError);
  pipeline.step(presplit(data_of(good, good)));
}

TEST(DeclaredBoundary, IsCheckedWhereValuesLeave) {
  const Boundary four{{.sizes = {3, 4}, .dtype = at::kLong}};
  Pipeline pipeline(parse_csv(kTwoRanks),
                    [&](Stage stage) { return stage == 0 ? declared({}, four) : StageModel(); },
                    {.loss = first_sum});
  const StepError error = failure_of(pipeline, data_of({torch::ones({3, 4})}, {torch::ones({3, 4})}));
  EXPECT_EQ(to_text(error.action), "0F0");
  expect_parts(error.what(), {"stage 0", "output", "slot 0", "int64[3, 4]", "float32[3, 4]"});
}

TEST(DeclaredBoundary, MayHaveOptionalValues) {
  const Boundary boundary{{.sizes = {-1}}, {.sizes = {2}, .dtype = at::kLong, .optional = true}};
  Pipeline pipeline(parse_csv(kTwoRanks), [&](Stage) { return declared(boundary, boundary); },
                    {.loss = first_sum});
  const at::Tensor x = torch::ones({3});
  const at::Tensor index = torch::ones({2}, at::kLong);
  EXPECT_EQ(pipeline.step(presplit(data_of({x, index}, {x, {}}))).loss.item<double>(), 3);
  EXPECT_EQ(pipeline.step(presplit(data_of({x, {}}, {x, index}))).loss.item<double>(), 3);
  expect_parts(failure_of(pipeline, data_of({x, index}, {{}, index})).what(), {"slot 0", "absent"});
}

Pipeline undeclared() {
  return Pipeline(parse_csv(kTwoRanks), [](Stage) { return StageModel(); }, {.loss = first_sum});
}

TEST(UndeclaredBoundary, IsWhatTheFirstMicrobatchOfTheStepBrings) {
  Pipeline pipeline = undeclared();
  const StepError error = failure_of(pipeline, data_of({torch::ones({3})}, {torch::ones({3}, at::kDouble)}));
  EXPECT_EQ(error.action.microbatch, 1U);
  expect_parts(error.what(), {"slot 0", "float32", "float64[3]"});
  expect_parts(failure_of(pipeline, data_of({torch::ones({3})}, {torch::ones({3}), torch::ones({1})})).what(),
               {"1", "2"});
  // Another step may bring something else.
  const at::Tensor x = torch::ones({3}, at::kDouble);
  EXPECT_EQ(pipeline.step(presplit(data_of({x, x}, {x, x}))).loss.item<double>(), 3);
}

TEST(UndeclaredBoundary, LeavesShapesAndPresenceFree) {
  Pipeline pipeline = undeclared();
  const at::Tensor x = torch::ones({3});
  const at::Tensor y = torch::ones({2, 2});
  EXPECT_EQ(pipeline.step(presplit(data_of({x, {}}, {y, x}))).loss.item<double>(), 3.5);
  EXPECT_EQ(pipeline.step(presplit(data_of({y, x}, {x, {}}))).loss.item<double>(), 3.5);
}

}  // namespace
}  // namespace pipewright
