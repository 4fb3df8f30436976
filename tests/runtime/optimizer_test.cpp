// The fused optimizers beside torch's own, by themselves; in steps of a pipeline they are in update_test.cpp.

#include "pipewright/runtime/optimizer.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <limits>
#include <sstream>
#include <string>

#include "pipewright/base/error.h"
#include "runtime/models.h"

namespace pipewright {
namespace {

using torch::optim::AdamW;
using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;
using torch::optim::OptimizerParamGroup;
using torch::optim::SGD;
using torch::optim::SGDOptions;
using torch::optim::SGDParamState;

/// Of several shapes: with too few numbers for a vector of them, with none, and laid out in columns.
std::vector<at::Tensor> parameters_of(at::ScalarType dtype) {
  std::vector<at::Tensor> all;
  for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{7, 5}, {}, {33}, {0}, {2, 3, 4}}) {
    all.push_back(numbers(all.size(), sizes).to(dtype));
  }
  all.push_back(numbers(9, {4, 6}).to(dtype).t());
  for (at::Tensor& each : all) each = each.detach().requires_grad_();
  return all;
}

/// Other gradients for each step, the same for the same step; some laid out unlike their parameters.
void give_gradients(const std::vector<at::Tensor>& parameters, std::uint64_t step) {
  for (std::size_t at = 0; at < parameters.size(); ++at) {
    const at::Tensor& parameter = parameters[at];
    const at::Tensor gradient = numbers(100 * step + at, parameter.sizes()).to(parameter.scalar_type());
    parameter.mutable_grad() =
        step % 2 == 1 && parameter.dim() == 2 ? gradient.t().contiguous().t() : gradient.clone();
  }
}

double tolerance(at::ScalarType dtype) {
  // On CUDA devices the rate is a float32.
  if (dtype == at::kDouble) return test_device().is_cpu() ? 1e-12 : 1e-6;
  return dtype == at::kFloat ? 1e-5 : 0.05;
}

void expect_alike(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  for (std::size_t at = 0; at < actual.size(); ++at) {
    const double within = tolerance(actual[at].scalar_type());
    EXPECT_TRUE(torch::allclose(actual[at], expected[at], within, within))
        << at << ": " << actual[at] << expected[at];
  }
}

struct Case {
  std::string name;
  /// torch's optimizer, or the fused one.
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>, bool fused)> make;
};

Case adamw(const std::string& name, const AdamWOptions& options) {
  return {"AdamW" + name, [options](std::vector<at::Tensor> parameters, bool fused) {
            return fused ? std::make_unique<FusedAdamW>(std::move(parameters), options)
                         : std::make_unique<AdamW>(std::move(parameters), options);
          }};
}

Case sgd(const std::string& name, const SGDOptions& options) {
  return {"SGD" + name, [options](std::vector<at::Tensor> parameters, bool fused) {
            return fused ? std::make_unique<FusedSGD>(std::move(parameters), options)
                         : std::make_unique<SGD>(std::move(parameters), options);
          }};
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const double decay : {0.0, 0.1}) {
    for (const bool amsgrad : {false, true}) {
      const std::string name = std::string(decay > 0 ? "Decaying" : "") + (amsgrad ? "AmsGrad" : "");
      all.push_back(adamw(name, AdamWOptions(0.02).weight_decay(decay).amsgrad(amsgrad)));
    }
    for (const double momentum : {0.0, 0.9}) {
      const std::string name =
          std::string(decay > 0 ? "Decaying" : "") + (momentum > 0 ? "WithMomentum" : "");
      all.push_back(sgd(name, SGDOptions(0.1).weight_decay(decay).momentum(momentum)));
    }
  }
  all.push_back(adamw("OtherBetas", AdamWOptions(0.02).betas({0.5, 0.7}).eps(1e-3)));
  all.push_back(sgd("Dampened", SGDOptions(0.1).momentum(0.9).dampening(0.4)));
  all.push_back(sgd("Nesterov", SGDOptions(0.1).momentum(0.9).nesterov(true)));
  return all;
}

class FusedOptimizer : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Every, FusedOptimizer, testing::ValuesIn(cases()),
                         [](const auto& each) { return each.param.name; });

TEST_P(FusedOptimizer, DoesWhatTorchsOwnDoes) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    SCOPED_TRACE(toString(dtype));
    std::vector<at::Tensor> fused = parameters_of(dtype);
    std::vector<at::Tensor> plain = parameters_of(dtype);
    const auto own = GetParam().make(fused, true);
    const auto torchs = GetParam().make(plain, false);
    for (std::uint64_t step = 0; step < 20; ++step) {
      give_gradients(fused, step);
      give_gradients(plain, step);
      if (step % 3 == 1) {  // they drop out, and come later than others
        fused[0].mutable_grad().reset();
        plain[0].mutable_grad().reset();
      }
      if (step < 5) {
        fused[2].mutable_grad().reset();
        plain[2].mutable_grad().reset();
      }
      if (step == 10) {
        for (const auto& optimizer : {own.get(), torchs.get()}) {
          optimizer->param_groups()[0].options().set_lr(0.003);
        }
      }
      own->step();
      torchs->step();
    }
    expect_alike(fused, plain);
    EXPECT_EQ(own->state().size(), torchs->state().size());
  }
}

TEST_P(FusedOptimizer, GoesOnFromWhatTorchSaves) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    std::vector<at::Tensor> first = parameters_of(dtype);
    const auto before = GetParam().make(first, true);
    const auto steps = [](torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& parameters,
                          std::uint64_t from) {
      for (std::uint64_t step = from; step < from + 3; ++step) {
        give_gradients(parameters, step);
        optimizer.step();
      }
    };
    steps(*before, first, 0);
    std::vector<at::Tensor> second;
    for (const at::Tensor& each : first) second.push_back(each.detach().clone().requires_grad_());
    std::stringstream file;
    torch::save(*before, file);
    const auto after = GetParam().make(second, true);
    torch::load(*after, file);
    steps(*before, first, 3);
    steps(*after, second, 3);
    for (std::size_t at = 0; at < first.size(); ++at) EXPECT_TRUE(torch::equal(first[at], second[at])) << at;
  }
}

/// Bits of all parameters and of everything that is remembered of them.
std::string bits_of_all(torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& parameters) {
  std::stringstream file;
  torch::save(optimizer, file);
  for (const at::Tensor& each : parameters) {
    const at::Tensor flat = each.detach().cpu().contiguous();
    file.write(static_cast<const char*>(flat.const_data_ptr()), static_cast<std::streamsize>(flat.nbytes()));
  }
  return file.str();
}

TEST_P(FusedOptimizer, LeavesEverythingAloneForNumbersThatAreNotFinite) {
  std::vector<at::Tensor> parameters = parameters_of(at::kFloat);
  const auto optimizer = GetParam().make(parameters, true);
  auto& update = dynamic_cast<Update&>(*optimizer);
  for (std::uint64_t step = 0; step < 4; ++step) {
    const std::string before = bits_of_all(*optimizer, parameters);
    give_gradients(parameters, step);
    parameters[1].mutable_grad().fill_(std::numeric_limits<double>::quiet_NaN());
    update.prepare();
    update.apply(torch::ones({}, test_device()));
    update.revert();
    EXPECT_EQ(bits_of_all(*optimizer, parameters), before) << step;
    give_gradients(parameters, step);
    update.prepare();
    update.apply(torch::zeros({}, test_device()));
    EXPECT_NE(bits_of_all(*optimizer, parameters), before) << step;
  }
  std::vector<at::Tensor> without = parameters_of(at::kFloat);
  const auto other = GetParam().make(without, true);
  for (std::uint64_t step = 0; step < 4; ++step) {
    give_gradients(without, step);
    other->step();
  }
  for (std::size_t at = 0; at < without.size(); ++at) {
    EXPECT_TRUE(torch::equal(parameters[at], without[at])) << at;
  }
}

TEST_P(FusedOptimizer, SaysWhenARecordingIsNoLongerGood) {
  std::vector<at::Tensor> parameters = parameters_of(at::kFloat);
  const auto optimizer = GetParam().make(parameters, true);
  auto& update = dynamic_cast<Update&>(*optimizer);
  const auto step = [&] {
    give_gradients(parameters, 1);
    optimizer->step();
    return update.fixed();
  };
  const std::vector<std::int64_t> first = step();
  EXPECT_EQ(step(), first);
  optimizer->param_groups()[0].options().set_lr(0.5);
  EXPECT_EQ(step(), first) << "the rate is read where it is";
  if (auto* options = dynamic_cast<AdamWOptions*>(&optimizer->param_groups()[0].options())) {
    options->weight_decay(0.3);
  } else {
    static_cast<SGDOptions&>(optimizer->param_groups()[0].options()).weight_decay(0.3);
  }
  const std::vector<std::int64_t> other = step();
  EXPECT_NE(other, first);
  if (optimizer->state().empty()) return;
  const std::string state = [&] {
    std::stringstream file;
    torch::save(*optimizer, file);
    return file.str();
  }();
  std::stringstream file(state);
  const auto kept = std::move(optimizer->state());  // so that its memory is not used again
  torch::load(*optimizer, file);
  EXPECT_NE(update.fixed(), other);
}

TEST(FusedOptimizers, TakeEachGroupWithItsOwnOptions) {
  const auto run = [](bool fused) {
    std::vector<at::Tensor> parameters = parameters_of(at::kFloat);
    const std::vector<at::Tensor> head(parameters.begin(), parameters.begin() + 3);
    const std::vector<at::Tensor> rest(parameters.begin() + 3, parameters.end());
    std::vector<OptimizerParamGroup> groups;
    groups.emplace_back(head, std::make_unique<AdamWOptions>(AdamWOptions(0.1).weight_decay(0.5)));
    groups.emplace_back(rest);
    const std::unique_ptr<AdamW> optimizer = fused ? std::make_unique<FusedAdamW>(groups, AdamWOptions(0.01))
                                                   : std::make_unique<AdamW>(groups, AdamWOptions(0.01));
    torch::optim::StepLR schedule(*optimizer, 2, 0.5);
    for (std::uint64_t step = 0; step < 8; ++step) {
      give_gradients(parameters, step);
      optimizer->step();
      schedule.step();
    }
    return parameters;
  };
  expect_alike(run(true), run(false));
}

TEST(FusedOptimizers, TakeParametersOfSeveralDtypesAtOnce) {
  const auto run = [](bool fused) {
    std::vector<at::Tensor> parameters;
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
      for (const at::Tensor& each : parameters_of(dtype)) parameters.push_back(each);
    }
    const auto optimizer = adamw("", AdamWOptions(0.01)).make(parameters, fused);
    for (std::uint64_t step = 0; step < 5; ++step) {
      give_gradients(parameters, step);
      optimizer->step();
    }
    return parameters;
  };
  expect_alike(run(true), run(false));
}

TEST(FusedOptimizers, CallTheClosureOnce) {
  std::vector<at::Tensor> parameters = parameters_of(at::kFloat);
  FusedSGD optimizer(parameters, SGDOptions(0.1));
  int calls = 0;
  const at::Tensor loss = optimizer.step([&] {
    ++calls;
    at::Tensor sum = parameters[0].square().sum();
    sum.backward();
    return sum;
  });
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(loss.requires_grad());
}

TEST(FusedOptimizers, RefuseWhatTheKernelsCannotTake) {
  const at::Tensor whole = torch::ones({4}, torch::requires_grad());
  EXPECT_THROW(FusedAdamW({torch::ones({4}, at::kComplexFloat)}), ArgumentError);
  EXPECT_THROW(FusedSGD({torch::ones({4, 4}).select(1, 0)}, SGDOptions(0.1)), ArgumentError);

  FusedSGD optimizer({whole}, SGDOptions(0.1));
  whole.mutable_grad() = torch::ones({4}).to_sparse();
  try {
    optimizer.step();
    ADD_FAILURE() << "a sparse gradient was taken";
  } catch (const ArgumentError& error) {
    EXPECT_NE(std::string(error.what()).find("sparse"), std::string::npos) << error.what();
  }
  EXPECT_TRUE(torch::equal(whole, torch::ones({4})));

  whole.mutable_grad() = torch::ones({4});
  EXPECT_THROW(optimizer.apply({}), Error) << "nothing was prepared";
}

}  // namespace
}  // namespace pipewright
