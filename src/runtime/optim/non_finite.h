#pragma once

#include <string>
#include <vector>

#include "pipewright/runtime/pipeline.h"

namespace pipewright {

/// Names the first of the losses, by microbatch, that is no finite number; empty where all are. `placement`:
/// on which rank a stage is.
std::string non_finite_loss(const std::vector<at::Tensor>& losses, const Placement& placement);

/// The same for the gradients of parameters.
std::string non_finite_gradient(const std::vector<LocalParameter>& parameters, const Placement& placement);

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
