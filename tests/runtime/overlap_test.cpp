#include <gtest/gtest.h>

#include "pipewright/schedule/csv.h"
#include "runtime/compare.h"
#include "runtime/models.h"
#include "runtime/rendezvous.h"

namespace pipewright {
namespace {

Rendezvous* meeting = nullptr;
bool met_in_backward = false;

struct MeetsInBackward : torch::autograd::Function<MeetsInBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list grads) {
    met_in_backward = meeting->arrive();
    return grads;
  }
};

/// The first stage waits in the forward of microbatch 1 for the last stage's backward
/// of microbatch 0, and the other way round.
struct Meeting {
  Rendezvous rendezvous;
  bool armed = false;
  bool met_in_forward = false;
  Model model = dropout();

  explicit Meeting(std::size_t layers_between) {
    meeting = &rendezvous;
    met_in_backward = false;
    const LayerFactory forward_meets = function([this](const Values& inputs) {
      if (armed && microbatch_now() == 1) met_in_forward = rendezvous.arrive();
      return inputs;
    });
    const LayerFactory backward_meets = function([this](const Values& inputs) {
      const bool here = armed && microbatch_now() == 0;
      return Values{here ? MeetsInBackward::apply(inputs.at(0)) : inputs.at(0)};
    });
    model.layers = {dense(4, 4), forward_meets};
    model.layers.insert(model.layers.end(), layers_between, dense(4, 4));
    model.layers.insert(model.layers.end(), {backward_meets, dense(4, 4)});
  }

  void expect_met_and_right(const char* csv) {
    const auto data = model.data(2);
    Unsplit unsplit(model);
    const auto expected = unsplit.run(data);
    armed = true;
    Pipeline pipeline = make_local_pipeline(model, parse_csv(csv));
    expect_losses(pipeline.step(presplit(data)), expected);
    expect_gradients(pipeline, unsplit.gradients());
    EXPECT_TRUE(met_in_forward);
    EXPECT_TRUE(met_in_backward);
  }
};

TEST(Overlap, RunsForwardAndBackwardAtTheSameTime) {
  Meeting(0).expect_met_and_right("0F0,1F0,(0F1;1B0)OVERLAP_F_B,0B0,1F1,1B1,0B1\n");
}

TEST(Overlap, RunsForwardAndInputGradientAtTheSameTime) {
  Meeting(0).expect_met_and_right("0F0,1F0,(0F1;1I0)OVERLAP_F_B,1W0,0B0,1F1,1B1,0B1\n");
}

TEST(Overlap, MayNameTheBackwardFirst) {
  Meeting(0).expect_met_and_right("0F0,1F0,(1B0;0F1)OVERLAP_F_B,0B0,1F1,1B1,0B1\n");
}

TEST(Overlap, BesideAnotherRankRunsItsPartsAtTheSameTime) {
  Meeting(4).expect_met_and_right(
      "0F0,3F0,(0F1;3B0)OVERLAP_F_B,3F1,3B1,0B0,0B1\n"
      "1F0,2F0,2B0,1B0,1F1,2F1,2B1,1B1\n");
}

TEST(Overlap, OnTheSameStageGivesTheSameGradients) {
  for (const Model& model : every_model()) {
    SCOPED_TRACE(model.name);
    expect_parity(model,
                  parse_csv("0F0,1F0,0F1,(1F1;1B0)OVERLAP_F_B,1B1,0B0,(0F2;0B1)OVERLAP_F_B,1F2,1B2,0B2\n"));
  }
}

TEST(Overlap, FailureOfEitherPartIsNamed) {
  for (const bool in_forward : {true, false}) {
    Model model = dropout();
    model.layers = {dense(4, 4), dense(4, 4)};
    Pipeline pipeline =
        make_local_pipeline(model, parse_csv("0F0,1F0,(0F1;1B0)OVERLAP_F_B,0B0,1F1,1B1,0B1\n"));
    pipeline.set_handler(in_forward ? Kind::F : Kind::B, [in_forward](const ActionContext& context) {
      const Action action = context.cell.front();
      if (action.microbatch == (in_forward ? 1U : 0U) && action.stage == (in_forward ? 0 : 1)) {
        throw std::runtime_error("refused");
      }
      context.run();
    });
    try {
      pipeline.step(presplit(model.data(2)));
      ADD_FAILURE() << "no error";
    } catch (const StepError& error) {
      EXPECT_EQ(to_text(error.action), in_forward ? "0F1" : "1B0");
    }
    pipeline.set_handler(in_forward ? Kind::F : Kind::B, {});
    pipeline.zero_grad();
    const auto data = model.data(2);
    Unsplit unsplit(model);
    expect_losses(pipeline.step(presplit(data)), unsplit.run(data));
    expect_gradients(pipeline, unsplit.gradients());
  }
}

}  // namespace
}  // namespace pipewright
