#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "pipewright/runtime/pipeline.h"

namespace pipewright {

/// What shows whether the numbers of a step are finite: each loss, then the largest of each gradient, one
/// float64 for each. Waits for no device. Undefined where there are neither.
at::Tensor telling_numbers(const std::vector<at::Tensor>& losses, const std::vector<at::Tensor>& gradients);

/// 1 where one of them is not finite, else 0: a float32 on their device.
at::Tensor any_non_finite(const at::Tensor& telling);

/// Names the first that is not: a loss, by microbatch, or the gradient of a parameter; empty where all are.
/// Waits once for their device. `telling`: of so many losses, and of the parameters that have gradients.
/// `placement`: on which rank a stage is.
std::string what_is_not_finite(const at::Tensor& telling, std::size_t losses,
                               const std::vector<LocalParameter>& parameters, const Placement& placement);

/// While it lives, the gradients that parameters had before are put aside. At its end they are back, without
/// what has come since unless that was kept.
class GradientsAside {
 public:
  explicit GradientsAside(const std::vector<LocalParameter>& parameters);
  ~GradientsAside();
  GradientsAside(const GradientsAside&) = delete;
  GradientsAside& operator=(const GradientsAside&) = delete;

  void keep_new() { keep_new_ = true; }

 private:
  struct Aside {
    at::Tensor parameter;
    at::Tensor gradient;
  };
  std::vector<Aside> aside_;
  bool keep_new_ = false;
};

}  // namespace pipewright
